//! Looks at the machine again and again, and says what holds work back whenever that is another thing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::{Hold, Rules, Sources, decide};
use crate::clock::Clock;

/// Between two looks: short enough for a game that starts, long enough to cost nothing.
pub const LOOK_EVERY: Duration = Duration::from_secs(3);
/// A look that takes longer is not waited for; the bus may hang.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Watches until nobody wants to know any more. New rules are gone by at once; with `every` between two looks.
#[must_use]
pub fn watch(
    mut rules: watch::Receiver<Rules>,
    sources: Sources,
    clock: Arc<dyn Clock>,
    every: Duration,
) -> (watch::Receiver<Option<Hold>>, JoinHandle<()>) {
    let (held, hold) = watch::channel(None);
    let task = tokio::spawn(async move {
        loop {
            let wished = rules.borrow_and_update().clone();
            let (sources, clock) = (sources.clone(), Arc::clone(&clock));
            let look = spawn_blocking(move || {
                let facts = sources.look(&wished, &*clock);
                decide(&wished, &facts)
            });
            if let Ok(Ok(now)) = timeout(LOOK_MAX, look).await {
                held.send_if_modified(|before| {
                    let is_new = *before != now;
                    *before = now;
                    is_new
                });
            }
            tokio::select! {
                () = sleep(every) => {}
                changed = rules.changed() => if changed.is_err() { return },
                () = held.closed() => return,
            }
        }
    });
    (hold, task)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::worker::courtesy::Reason;

    #[tokio::test]
    async fn a_program_that_starts_and_ends_holds_work_back_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources { sys: dir.path().join("sys"), proc: dir.path().join("proc"), bus: false };
        let (wish, rules) = watch::channel(Rules { pause_for_apps: vec!["game".into()], ..Rules::default() });
        let (mut hold, task) =
            watch(rules, sources.clone(), Arc::new(SystemClock::default()), Duration::from_millis(10));
        let game = sources.proc.join("77");
        std::fs::create_dir_all(&game).unwrap();
        std::fs::write(game.join("comm"), "game\n").unwrap();
        let held = hold.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        assert_eq!((held.reason, held.detail.as_str()), (Reason::ExclusiveApp, "game"));
        std::fs::remove_dir_all(&game).unwrap();
        drop(hold.wait_for(Option::is_none).await.unwrap());
        wish.send_modify(|rules| rules.duty_percent = 0);
        let held = hold.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        assert_eq!(held.reason, Reason::Duty);
        drop(wish);
        task.await.unwrap();
    }
}
