//! The hub's side: says hello, checks the worker's answer, welcomes it.

use std::time::Duration;

use zeroize::Zeroizing;

use super::transcript::Transcript;
use super::{
    AGENT_BYTES_MAX, Context, Ephemeral, HOST_BYTES_MAX, HandshakeError, HubCert, HubHello, Limits, Open, Seal,
    Welcome, WorkerAuth, check_text, possession,
};
use crate::types::{Digest, Hex, PublicKey, SessionId, WorkerId};
use crate::wire::frame::{Frame, Kind};
use crate::wire::signature::KeyPair;

/// How long a hello may wait for its answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A hub's key and its operator's word for it.
#[derive(Clone, Debug)]
pub struct HubIdentity {
    key: KeyPair,
    cert: HubCert,
}

impl HubIdentity {
    /// `key` with a certificate by `operator` that ends at `not_after_unix_s`.
    #[must_use]
    pub fn issued_by(operator: &KeyPair, key: KeyPair, not_after_unix_s: u64) -> Self {
        let cert = HubCert::issue(operator, key.public(), not_after_unix_s);
        Self { key, cert }
    }

    /// `key` with a certificate made elsewhere; `None` when it is for another key.
    #[must_use]
    pub fn new(key: KeyPair, cert: HubCert) -> Option<Self> {
        (cert.hub_key == key.public()).then_some(Self { key, cert })
    }

    /// The hub's key pair; it also signs receipts.
    #[must_use]
    pub fn key(&self) -> &KeyPair {
        &self.key
    }
}

/// What a hub offers on every session.
#[derive(Clone, Debug)]
pub struct HubTerms {
    /// Counts the hub's starts.
    pub hub_epoch: u64,
    /// Manifest of the model that is served.
    pub manifest: Digest,
    /// What it allows.
    pub limits: Limits,
    /// Whether a wallet that is new here has to show its join code.
    pub invite_only: bool,
}

/// Fresh randomness of one session at the hub.
pub struct HubRandom {
    /// Names the session.
    pub session_id: [u8; 16],
    /// Makes recorded answers worthless.
    pub nonce: [u8; 32],
    /// x25519 secret.
    pub x25519: Zeroizing<[u8; 32]>,
}

impl HubRandom {
    /// From the operating system.
    ///
    /// # Errors
    /// When it gives none.
    pub fn draw() -> Result<Self, getrandom::Error> {
        let mut out = Self { session_id: [0; 16], nonce: [0; 32], x25519: Zeroizing::new([0; 32]) };
        getrandom::fill(&mut out.session_id)?;
        getrandom::fill(&mut out.nonce)?;
        getrandom::fill(out.x25519.as_mut())?;
        Ok(out)
    }
}

/// A hello that waits for its answer. Used once: an answer cannot be given twice.
pub struct HubHandshake {
    key: KeyPair,
    hello: Frame,
    session_id: SessionId,
    ephemeral: Ephemeral,
    transcript: Transcript,
    said_at: Duration,
}

/// An authenticated worker.
pub struct HubSession {
    /// Who is paid.
    pub wallet: PublicKey,
    /// The installation.
    pub worker_id: WorkerId,
    /// The session.
    pub session_id: SessionId,
    /// Key that acknowledges receipts.
    pub session_key: PublicKey,
    /// Program and version, printable ASCII.
    pub agent: String,
    /// From hello to answer.
    pub round_trip: Duration,
    /// The join code that it showed, unread.
    pub invite: Option<String>,
    /// Tags frames to the worker.
    pub seal: Seal,
    /// Checks frames from the worker.
    pub open: Open,
}

impl HubHandshake {
    /// The hello to send, and the state that its answer needs; `now` is monotonic.
    ///
    /// # Errors
    /// A frame that cannot be built.
    pub fn hello(
        identity: &HubIdentity,
        terms: &HubTerms,
        random: HubRandom,
        now: Duration,
    ) -> Result<(Self, Frame), HandshakeError> {
        let ephemeral = Ephemeral(random.x25519);
        let session_id = Hex(random.session_id);
        let hello = HubHello {
            cert: identity.cert.clone(),
            hub_epoch: terms.hub_epoch,
            session_id,
            nonce: Hex(random.nonce),
            x25519: ephemeral.public(),
            manifest: terms.manifest,
            limits: terms.limits,
            invite_only: terms.invite_only,
        };
        let mut transcript = Transcript::default();
        let frame = transcript.sign(Kind::HubHello, &hello, |parts| identity.key.sign(Context::HubHello, parts))?;
        transcript.add(&frame);
        let key = identity.key.clone();
        Ok((Self { key, hello: frame.clone(), session_id, ephemeral, transcript, said_at: now }, frame))
    }

    /// The hello's session.
    #[must_use]
    pub fn session_id(&self) -> SessionId {
        self.session_id
    }

    /// Checks the worker's answer; gives the welcome to send and the session. The hub may still send a
    /// [`super::Refuse`] instead of the welcome, now that it knows the wallet.
    ///
    /// # Errors
    /// [`HandshakeError`]; answer with its [`HandshakeError::refusal`].
    pub fn accept(
        mut self,
        frame: &Frame,
        public_hosts: &[String],
        now: Duration,
    ) -> Result<(Frame, HubSession), HandshakeError> {
        let round_trip = now.saturating_sub(self.said_at);
        if round_trip > ANSWER_WITHIN {
            return Err(HandshakeError::Late { limit_ms: ANSWER_WITHIN.as_millis() as u64 });
        }
        let auth = Transcript::parse::<WorkerAuth>(frame, Kind::WorkerAuth)?;
        let wallet = auth.body.wallet;
        let auth = auth.verify(&self.transcript, Context::WorkerAuth, &wallet)?;
        Context::SessionKey.verify(&auth.session_key, &[&possession(&self.hello, &auth)], &auth.session_signature)?;
        check_text("agent", &auth.agent, AGENT_BYTES_MAX)?;
        check_text("host", &auth.host, HOST_BYTES_MAX)?;
        if !public_hosts.iter().any(|host| host.eq_ignore_ascii_case(&auth.host)) {
            return Err(HandshakeError::HostNotAllowed { host: auth.host });
        }
        self.transcript.add(frame);
        let [to_worker, to_hub] = self.ephemeral.keys(&auth.x25519, &self.hello, frame)?;
        let welcome = Welcome { session_id: self.session_id, wallet };
        let welcome = self.transcript.sign(Kind::Welcome, &welcome, |parts| self.key.sign(Context::Welcome, parts))?;
        let session = HubSession {
            round_trip,
            wallet,
            worker_id: auth.worker_id,
            session_id: self.session_id,
            session_key: auth.session_key,
            agent: auth.agent,
            invite: auth.invite,
            seal: Seal::new(to_worker),
            open: Open::new(to_hub),
        };
        Ok((welcome, session))
    }
}
