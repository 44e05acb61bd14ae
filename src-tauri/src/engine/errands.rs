//! What is done beside the engine's task, so that no order waits for a gateway or the disk: claims, receipts, sizes.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::claim::{self, CLAIM_LASTS_S, ClaimError, ClaimRoom};
use super::facts::ReceiptLine;
use super::{Context, Engine, EngineError, GONE, Order, receipts, remove};
use crate::net::dial::{Connector, Outbound};
use crate::net::https::Gateway;
use crate::wallet::Wallet;
use crate::wire::invite::Invite;

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
        let network = network.ok_or(EngineError::NoNetwork)?;
        let outbound = Outbound { network_ca_pem: network.ca_pem.clone(), ..self.outbound.clone() };
        let connector = Arc::new(Connector::new(&outbound)?);
        let gateway = |url: &String| Gateway::at(url, Arc::clone(&connector));
        let gateways = network.gateways.iter().map(gateway).collect::<Result<Vec<_>, _>>().map_err(ClaimError::from)?;
        Ok((wallet, network, gateways))
    }

    /// The open wallet.
    #[cfg(feature = "desktop")]
    pub(crate) async fn wallet(&self) -> Option<Arc<Wallet>> {
        self.context().await.ok().map(|context| context.wallet)
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
        receipts::of(self.state_dir.to_path_buf(), wallet.address(), rate).await
    }

    async fn context(&self) -> Result<Context, EngineError> {
        let (context, given) = oneshot::channel();
        self.ask(Order::Context(context)).await?;
        given.await.map_err(|_| GONE)
    }
}
