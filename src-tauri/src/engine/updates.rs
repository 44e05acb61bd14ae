//! A watcher's view of the engine: every change in the end, and never more than four a second.

use tokio::sync::watch;
use tokio::time::Instant;

use super::UPDATE_EVERY;
use super::status::Status;

/// The changes of an engine, at most one every [`UPDATE_EVERY`]; what happens in between shows in the next.
pub struct Updates {
    pub(super) status: watch::Receiver<Status>,
    pub(super) last: Option<Instant>,
}

impl Updates {
    /// The next change; `None` once the engine has stopped.
    pub async fn next(&mut self) -> Option<Status> {
        self.status.changed().await.ok()?;
        if let Some(last) = self.last {
            tokio::time::sleep_until(last + UPDATE_EVERY).await;
        }
        self.last = Some(Instant::now());
        Some(self.status.borrow_and_update().clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_watcher_hears_of_at_most_four_changes_a_second_and_of_the_last_one() {
        let (board, status) = watch::channel(Status::default());
        let mut watched = status.clone();
        watched.mark_changed();
        let mut updates = Updates { status: watched, last: None };
        let writer = tokio::spawn(async move {
            for assignments in 1..=200u64 {
                board.send_modify(|s| s.assignments = assignments);
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        });
        let (start, mut heard, mut last) = (Instant::now(), 0, 0);
        while let Some(status) = updates.next().await {
            (heard, last) = (heard + 1, status.assignments);
        }
        writer.await.unwrap();
        assert!(heard <= start.elapsed().as_millis() / UPDATE_EVERY.as_millis() + 1, "{heard}");
        assert_eq!(last, 200);
    }
}
