//! Stop, with a driver that takes its time: from any state in less than a second, and afterwards nothing is computed.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use kvasir::engine::{PauseKind, Settings};
use kvasir::kernel::{Expert, ExpertSource, KernelError};
use kvasir::wire::work::{Dispatch, Partials};

use super::guest::holds_slice;
use super::*;
use crate::support::fault_proxy::FaultProxy;

/// Stop means stop.
const STOP_MAX: Duration = Duration::from_secs(1);

/// A CPU behind a driver that opens when it is let, and gives back only what it has opened.
struct Driver {
    cpu: Arc<dyn ExpertCompute>,
    is_stuck: Mutex<bool>,
    let_go: Condvar,
    /// Whether it is being opened.
    opening: AtomicUsize,
    is_open: Mutex<bool>,
    computed: AtomicUsize,
}

impl Driver {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            cpu: kernel(),
            is_stuck: Mutex::new(false),
            let_go: Condvar::new(),
            opening: AtomicUsize::new(0),
            is_open: Mutex::new(true),
            computed: AtomicUsize::new(0),
        })
    }

    fn stick(&self, is_stuck: bool) {
        *self.is_stuck.lock().unwrap() = is_stuck;
        self.let_go.notify_all();
    }

    /// Completes once `wish` holds.
    async fn until(&self, what: &str, wish: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !wish(self) {
            assert!(start.elapsed() < PATIENCE, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl ExpertCompute for Driver {
    fn compute(&self, e: &dyn ExpertSource, layer: u16, parts: &[Dispatch]) -> Result<Vec<Partials>, KernelError> {
        if !*self.is_open.lock().unwrap() {
            return Err(KernelError::Lost { device: self.device(), reason: "given back".into() });
        }
        self.computed.fetch_add(1, SeqCst);
        self.cpu.compute(e, layer, parts)
    }

    fn device(&self) -> String {
        "a card behind a slow driver".into()
    }

    fn identity(&self) -> String {
        "card".into()
    }

    fn place(&self, expert: Expert) -> Result<Expert, KernelError> {
        self.cpu.place(expert)
    }

    fn release(&self) {
        *self.is_open.lock().unwrap() = false;
    }

    fn recover(&self, _patience: Duration) -> Result<(), KernelError> {
        let mut is_open = self.is_open.lock().unwrap();
        if !*is_open {
            self.opening.fetch_add(1, SeqCst);
            drop(self.let_go.wait_while(self.is_stuck.lock().unwrap(), |is_stuck| *is_stuck).unwrap());
            self.opening.fetch_sub(1, SeqCst);
            *is_open = true;
        }
        Ok(())
    }
}

async fn stops(desk: &Desk, driver: &Driver, state: &str) {
    let before = Instant::now();
    desk.engine.contribute(false).await.unwrap();
    assert!(before.elapsed() < STOP_MAX, "{state}: {:?}", before.elapsed());
    assert_eq!(desk.engine.status().link, Link::Off, "{state}");
    driver.stick(false);
    driver.until("the card is given back", |driver| !*driver.is_open.lock().unwrap()).await;
    let computed = driver.computed.load(SeqCst);
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(driver.computed.load(SeqCst), computed, "{state}: nothing more is computed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_takes_its_time_keeps_nobody_from_stopping() {
    let (network, dir, driver) = (network().await, tempfile::tempdir().unwrap(), Driver::new());
    let proxy = FaultProxy::before(network.gateway()).await;
    let found = Arc::clone(&driver);
    let desk = Desk::with(dir.path(), |config| {
        config.hardware = Box::new(move |_| {
            let kernel = Arc::clone(&found) as Arc<dyn ExpertCompute>;
            let hardware = Hardware { kernel, why: String::new() };
            Box::pin(async move { Search { found: Vec::new(), best: Ok(hardware.fixed()) } })
        });
    });
    desk.ready().await;
    // Who does not work keeps no card awake.
    driver.until("a card that nobody uses is given back", |driver| !*driver.is_open.lock().unwrap()).await;
    desk.join(&network.join_code().unwrap()).await;
    let gateways = vec![format!("wss://localhost:{}", proxy.addr.port())];
    desk.engine.save_settings(Settings { gateways, ..Settings::default() }).await.unwrap();

    driver.stick(true);
    desk.engine.contribute(true).await.unwrap();
    driver.until("the device is checked", |driver| driver.opening.load(SeqCst) > 0).await;
    stops(&desk, &driver, "checking the device").await;

    desk.engine.contribute(true).await.unwrap();
    desk.until("a slice", holds_slice).await;
    // The card goes away in the middle, and its driver does not come back.
    let lost = async {
        desk.until("answers", |s| s.assignments > 0).await;
        driver.stick(true);
        driver.release();
        driver.until("the card is looked for", |driver| driver.opening.load(SeqCst) > 0).await;
        stops(&desk, &driver, "looking for the card").await;
    };
    tokio::select! {
        () = generate(&network, 2000) => panic!("the generation is too short for this test"),
        () = lost => {}
    }

    desk.engine.contribute(true).await.unwrap();
    desk.until("a slice", holds_slice).await;
    drop(proxy);
    desk.until("reconnecting", |s| matches!(s.link, Link::Waiting { .. })).await;
    stops(&desk, &driver, "reconnecting").await;

    desk.engine.pause(PauseKind::UntilResumed).await.unwrap();
    stops(&desk, &driver, "paused").await;
    desk.stop().await;
    network.stop().await.unwrap();
}
