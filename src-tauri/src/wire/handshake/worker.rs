//! The worker's side: checks who the hub is, proves its wallet, waits for the welcome.

use zeroize::Zeroizing;

use super::transcript::Transcript;
use super::{
    AGENT_BYTES_MAX, Context, Ephemeral, HOST_BYTES_MAX, HandshakeError, HubHello, Limits, Open, Seal, Welcome,
    WorkerAuth, check_text, possession,
};
use crate::types::{Digest, Hex, PublicKey, SessionId, WorkerId};
use crate::wire::frame::{Frame, Kind};
use crate::wire::signature::KeyPair;

/// The only kind of message that a wallet signs for a hub. Made here and nowhere else, so that no peer chooses its bytes.
pub struct AuthMessage(Vec<u8>);

impl AuthMessage {
    /// The bytes to sign, with their context prefix.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Holds a wallet's key and joins sessions with it.
pub trait AuthSigner: Send + Sync {
    /// The wallet.
    fn address(&self) -> PublicKey;
    /// ed25519 signature over [`AuthMessage::as_bytes`].
    fn sign_auth(&self, message: &AuthMessage) -> [u8; 64];
}

/// Fresh randomness of one session at the worker.
pub struct WorkerRandom {
    /// Makes recorded welcomes worthless.
    pub nonce: [u8; 32],
    /// x25519 secret.
    pub x25519: Zeroizing<[u8; 32]>,
    /// Seed of the session key.
    pub session_seed: Zeroizing<[u8; 32]>,
}

impl WorkerRandom {
    /// From the operating system.
    ///
    /// # Errors
    /// When it gives none.
    pub fn draw() -> Result<Self, getrandom::Error> {
        let mut out = Self { nonce: [0; 32], x25519: Zeroizing::new([0; 32]), session_seed: Zeroizing::new([0; 32]) };
        getrandom::fill(&mut out.nonce)?;
        getrandom::fill(out.x25519.as_mut())?;
        getrandom::fill(out.session_seed.as_mut())?;
        Ok(out)
    }
}

/// A worker before or between the hub's two frames.
pub struct WorkerHandshake {
    operators: Vec<PublicKey>,
    host: String,
    worker_id: WorkerId,
    agent: String,
    invite: Option<String>,
    random: Option<WorkerRandom>,
    answered: Option<Answered>,
}

/// What the answer left behind for the welcome.
struct Answered {
    hello: HubHello,
    wallet: PublicKey,
    session_signer: KeyPair,
    transcript: Transcript,
    keys: [Zeroizing<[u8; 32]>; 2],
}

/// A session that the hub agreed to.
pub struct WorkerSession {
    /// The session.
    pub session_id: SessionId,
    /// The hub's key; it signs receipts.
    pub hub_key: PublicKey,
    /// The hub's epoch.
    pub hub_epoch: u64,
    /// Acknowledges receipts.
    pub session_signer: KeyPair,
    /// Manifest of the model that is served.
    pub manifest: Digest,
    /// What the hub allows.
    pub limits: Limits,
    /// Tags frames to the hub.
    pub seal: Seal,
    /// Checks frames from the hub.
    pub open: Open,
}

impl WorkerHandshake {
    /// A worker that trusts hubs certified by `operators` and dialled `host` (a name without port).
    #[must_use]
    pub fn new(operators: Vec<PublicKey>, host: &str, worker_id: WorkerId, agent: &str, random: WorkerRandom) -> Self {
        let (host, agent) = (host.to_ascii_lowercase(), agent.to_owned());
        Self { operators, host, worker_id, agent, invite: None, random: Some(random), answered: None }
    }

    /// The same worker with a join code to show to a hub that asks for one.
    #[must_use]
    pub fn with_invite(self, invite: Option<String>) -> Self {
        Self { invite, ..self }
    }

    /// Checks the hub's hello and gives the answer to send. The wallet signs only after the hub has proved itself.
    ///
    /// # Errors
    /// [`HandshakeError`]; a second call is [`HandshakeError::Unexpected`].
    pub fn answer(&mut self, frame: &Frame, wallet: &dyn AuthSigner, now_unix_s: u64) -> Result<Frame, HandshakeError> {
        let mut transcript = Transcript::default();
        let hello = Transcript::parse::<HubHello>(frame, Kind::HubHello)?;
        hello.body.cert.verify(&self.operators, now_unix_s)?;
        let hub_key = hello.body.cert.hub_key;
        let hello = hello.verify(&transcript, Context::HubHello, &hub_key)?;
        hello.limits.check()?;
        check_text("agent", &self.agent, AGENT_BYTES_MAX)?;
        check_text("host", &self.host, HOST_BYTES_MAX)?;
        transcript.add(frame);

        let Some(random) = self.random.take() else {
            return Err(HandshakeError::Unexpected { expected: Kind::Welcome, got: Kind::HubHello });
        };
        let ephemeral = Ephemeral(random.x25519);
        let session_signer = KeyPair::from_seed(&random.session_seed);
        let mut auth = WorkerAuth {
            wallet: wallet.address(),
            worker_id: self.worker_id,
            session_key: session_signer.public(),
            session_signature: Hex([0; 64]),
            nonce: Hex(random.nonce),
            x25519: ephemeral.public(),
            host: self.host.clone(),
            agent: self.agent.clone(),
            invite: self.invite.clone().filter(|_| hello.invite_only),
        };
        auth.session_signature = session_signer.sign(Context::SessionKey, &[&possession(frame, &auth)]);
        let answer = transcript.sign(Kind::WorkerAuth, &auth, |parts| {
            Hex(wallet.sign_auth(&AuthMessage(Context::WorkerAuth.message(parts))))
        })?;
        transcript.add(&answer);
        let keys = ephemeral.keys(&hello.x25519, frame, &answer)?;
        self.answered = Some(Answered { hello, wallet: auth.wallet, session_signer, transcript, keys });
        Ok(answer)
    }

    /// Checks the hub's welcome and gives the session.
    ///
    /// # Errors
    /// [`HandshakeError`], among them what the hub refused with.
    pub fn welcomed(self, frame: &Frame) -> Result<WorkerSession, HandshakeError> {
        let Some(Answered { hello, wallet, session_signer, transcript, keys }) = self.answered else {
            return Err(HandshakeError::Unexpected { expected: Kind::HubHello, got: frame.header.kind });
        };
        let welcome = Transcript::parse::<Welcome>(frame, Kind::Welcome)?.verify(
            &transcript,
            Context::Welcome,
            &hello.cert.hub_key,
        )?;
        if welcome != (Welcome { session_id: hello.session_id, wallet }) {
            return Err(HandshakeError::NotOurs);
        }
        let [from_hub, to_hub] = keys;
        Ok(WorkerSession {
            session_id: hello.session_id,
            hub_key: hello.cert.hub_key,
            hub_epoch: hello.hub_epoch,
            session_signer,
            manifest: hello.manifest,
            limits: hello.limits,
            seal: Seal::new(to_hub),
            open: Open::new(from_hub),
        })
    }
}
