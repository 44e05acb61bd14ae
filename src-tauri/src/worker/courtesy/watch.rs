//! Looks at the machine again and again, and says what holds work back whenever that is another thing.
//!
//! **Promise:** a file or a bus that hangs is asked by one thread and no more, and keeps no rule waiting that does not
//! need it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::{Facts, Rules, Sources, Welcome, decide};
use crate::clock::Clock;

/// Between two looks: short enough for a game that starts, long enough to cost nothing.
pub const LOOK_EVERY: Duration = Duration::from_secs(3);
/// A look that takes longer is not waited for; the bus may hang.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// A question that may hang: asked again only once the last answer has come.
struct Question<T>(Option<JoinHandle<T>>);

impl<T: Send + 'static> Question<T> {
    /// The answer, when it comes in time; perhaps that to the question of before.
    async fn ask(&mut self, within: Duration, answer: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let asked = self.0.get_or_insert_with(|| spawn_blocking(answer));
        let answered = timeout(within, asked).await.ok()?;
        self.0 = None;
        answered.ok()
    }
}

/// Watches until nobody wants to know any more. New rules are gone by at once; with `every` between two looks.
#[must_use]
pub fn watch(
    mut rules: watch::Receiver<Rules>,
    sources: Sources,
    clock: Arc<dyn Clock>,
    every: Duration,
) -> (watch::Receiver<Welcome>, JoinHandle<()>) {
    let (said, welcome) = watch::channel(Welcome::Unknown);
    let task = tokio::spawn(async move {
        let (mut files, mut services) = (Question(None), Question(None));
        loop {
            let wished = rules.borrow_and_update().clone();
            let [from_files, from_services] = [(); 2].map(|()| (sources.clone(), wished.clone()));
            let (files, told) = tokio::join!(
                files.ask(LOOK_MAX, move || from_files.0.look(&from_files.1)),
                services.ask(LOOK_MAX, move || from_services.0.ask(&from_services.1)),
            );
            let now = decide(&wished, &Facts::of(&*clock, files.unwrap_or_default(), told.unwrap_or_default())).into();
            said.send_if_modified(|before| {
                let is_new = *before != now;
                *before = now;
                is_new
            });
            tokio::select! {
                () = sleep(every) => {}
                changed = rules.changed() => if changed.is_err() { return },
                () = said.closed() => return,
            }
        }
    });
    (welcome, task)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::worker::courtesy::Reason;

    #[tokio::test]
    async fn a_program_that_starts_and_ends_holds_work_back_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources { sys: dir.path().join("sys"), proc: dir.path().join("proc"), services: false };
        let (wish, rules) = watch::channel(Rules { pause_for_apps: vec!["game".into()], ..Rules::default() });
        let (mut welcome, task) =
            watch(rules, sources.clone(), Arc::new(SystemClock::default()), Duration::from_millis(10));
        assert_eq!(*welcome.borrow(), Welcome::Unknown, "nothing begins before the first look");
        drop(welcome.wait_for(|welcome| *welcome == Welcome::Yes).await.unwrap());
        let game = sources.proc.join("77");
        std::fs::create_dir_all(&game).unwrap();
        std::fs::write(game.join("comm"), "game\n").unwrap();
        let held = welcome.wait_for(|welcome| welcome.hold().is_some()).await.unwrap().hold().cloned().unwrap();
        assert_eq!((held.reason, held.detail.as_str()), (Reason::ExclusiveApp, "game"));
        std::fs::remove_dir_all(&game).unwrap();
        drop(welcome.wait_for(|welcome| *welcome == Welcome::Yes).await.unwrap());
        wish.send_modify(|rules| rules.duty_percent = 0);
        let held = welcome.wait_for(|welcome| welcome.hold().is_some()).await.unwrap().hold().cloned().unwrap();
        assert_eq!(held.reason, Reason::Duty);
        drop(wish);
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_question_that_hangs_is_asked_once() {
        let (answer, answers) = std::sync::mpsc::channel::<u8>();
        let (mut question, soon, later) = (Question(None), Duration::from_millis(10), LOOK_MAX);
        assert_eq!(question.ask(soon, move || answers.recv().unwrap()).await, None);
        assert_eq!(question.ask(soon, || unreachable!("the first still hangs")).await, None);
        answer.send(7).unwrap();
        assert_eq!(question.ask(later, || unreachable!("the first is answered")).await, Some(7));
        assert_eq!(question.ask(later, || 8).await, Some(8));
    }
}
