//! Texts that end an answer and do not belong to it.

use super::begun;

/// Looks for the first of some texts to be complete in a stream; what may become one waits.
#[derive(Debug, Default)]
pub struct StopTexts {
    texts: Vec<String>,
    held: String,
}

impl StopTexts {
    /// Ends at any of `texts`.
    #[must_use]
    pub fn new(texts: Vec<String>) -> Self {
        Self { texts, held: String::new() }
    }

    /// What of the text so far is certain to belong to the answer, and whether the answer ends there.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        // The first to be complete, the longest of several: so it is found however the text is cut.
        let found = |stop: &String| self.held.find(stop).map(|at| (at + stop.len(), at));
        if let Some((_, at)) = self.texts.iter().filter_map(found).min() {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let waiting = self.texts.iter().map(|stop| begun(&self.held, stop)).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - waiting);
        (std::mem::replace(&mut self.held, kept), false)
    }

    /// What waited, once nothing follows.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
