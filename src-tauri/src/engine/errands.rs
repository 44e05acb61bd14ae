//! What takes longer than an order may: claims, receipts, and what the doctor should look at.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::claim::{self, CLAIM_LASTS_S, ClaimError, ClaimRoom};
use super::work::EXPERTS_DIR;
use super::{Context, Engine, EngineError, GONE, Order, ReceiptLine, WalletState, receipts, remove};
use crate::doctor::{self, WalletFound};
use crate::net::dial::{Connector, Outbound};
use crate::net::https::Gateway;
use crate::wallet::Wallet;
use crate::wire::invite::Invite;
use crate::worker::network;

impl Engine {
    /// Claims to be paid so many nano-KVR of what is pending, all of it when `None`; gives the signed claim's words.
    ///
    /// # Errors
    /// No wallet or network, an amount that cannot be claimed, or a gateway that refuses.
    pub async fn claim(&self, nano: Option<String>) -> Result<String, EngineError> {
        let (wallet, network, gateways) = self.gateways().await?;
        let expires_unix_s = self.clock.unix_ms() / 1000 + CLAIM_LASTS_S;
        let prepared = claim::prepare(&wallet, &gateways, network.operator, nano.as_deref(), expires_unix_s).await?;
        prepared.hand_in().await?;
        Ok(prepared.claim.text)
    }

    /// What may be claimed now.
    ///
    /// # Errors
    /// No wallet or network, or a gateway that does not say.
    pub async fn claim_room(&self) -> Result<ClaimRoom, EngineError> {
        let (wallet, network, gateways) = self.gateways().await?;
        Ok(claim::room(wallet.address(), &gateways, network.operator).await?)
    }

    /// Who asks, in which network, and the ways there.
    async fn gateways(&self) -> Result<(Arc<Wallet>, Invite, Vec<Gateway>), EngineError> {
        let Context { wallet, network, .. } = self.context().await?;
        let wallet = wallet.ok_or(EngineError::NoWallet)?;
        let network = network.ok_or(EngineError::NoNetwork)?;
        let outbound = Outbound { network_ca_pem: network.ca_pem.clone(), ..self.outbound.clone() };
        let connector = Arc::new(Connector::new(&outbound)?);
        let gateway = |url: &String| Gateway::at(url, Arc::clone(&connector));
        let gateways = network.gateways.iter().map(gateway).collect::<Result<Vec<_>, _>>().map_err(ClaimError::from)?;
        Ok((wallet, network, gateways))
    }

    /// Bytes that downloaded slices take of the disk.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub async fn slices_bytes(&self) -> Result<u64, EngineError> {
        remove::slices_bytes(self.state_dir.to_path_buf()).await
    }

    /// The receipts that the worker kept, newest first.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub async fn receipts(&self) -> Result<Vec<ReceiptLine>, EngineError> {
        let Context { wallet, rate, .. } = self.context().await?;
        let wallet = wallet.ok_or(EngineError::NoWallet)?;
        receipts::of(self.state_dir.to_path_buf(), wallet.address(), rate).await
    }

    /// What an examination has to look at: the network as the worker reaches it, the wallet as far as it is open, and
    /// the owner's wishes.
    pub async fn examination(&self) -> doctor::Options {
        let (status, given) = (self.status(), self.context().await);
        let mut options = doctor::Options {
            outbound: self.outbound.clone(),
            cache_dir: Some(self.state_dir.join(EXPERTS_DIR)),
            rules: status.settings.rules,
            ..doctor::Options::new(self.state_dir.to_path_buf())
        };
        let wallet = match given {
            Err(error) => return doctor::Options { wallet: WalletFound::Trouble(error.to_string()), ..options },
            Ok(Context { wallet, network, .. }) => {
                if let Some(invite) = network {
                    options.outbound.network_ca_pem = invite.ca_pem;
                    (options.gateways, options.operators) = (invite.gateways, vec![invite.operator]);
                    options.invite = network::code(&self.state_dir);
                }
                wallet
            }
        };
        options.wallet = match (wallet, status.wallet.state) {
            (Some(wallet), _) => WalletFound::Here(wallet),
            (None, WalletState::KeyMissing { problem, .. } | WalletState::Failed { problem }) => {
                WalletFound::Trouble(problem.message)
            }
            (None, WalletState::Opening | WalletState::Ready { .. }) => WalletFound::None,
        };
        options
    }

    async fn context(&self) -> Result<Context, EngineError> {
        let (context, given) = oneshot::channel();
        self.ask(Order::Context(context)).await?;
        given.await.map_err(|_| GONE)
    }
}
