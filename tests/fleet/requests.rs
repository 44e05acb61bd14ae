//! How a simulated worker treats requests: mostly it computes and answers them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use kvasir::types::ExpertId;
use kvasir::wire::control::{Control, Decline};
use kvasir::wire::work::Dispatch;
use kvasir::wire::{Frame, Header, Kind};
use tokio::time::Instant;

use super::lies::{Lie, draw};
use super::worker::Session;

impl Session<'_> {
    /// Collects a request's parts and answers; `false` when a hub would end the session.
    pub fn asked(&mut self, frame: Frame) -> bool {
        let header = frame.header;
        self.book.lock().expect("no panic").asked(&header);
        let parts = self.parts.entry(header.request).or_default();
        parts.push(frame);
        if parts.len() < usize::from(header.parts) {
            return true;
        }
        let parts = self.parts.remove(&header.request).unwrap();
        let hidden = self.world.hidden() as usize;
        let requests: Vec<Dispatch> =
            parts.iter().map(|part| Dispatch::decode(&part.header, &part.body, hidden).unwrap()).collect();
        self.leaving.retain(|(until, _)| *until > Instant::now());
        for assignment in requests.iter().flat_map(|request| &request.assignments) {
            let id = ExpertId { layer: header.layer, expert: assignment.expert };
            let is_here = self.stock.contains(&id) || self.leaving.iter().any(|(_, slice)| slice.contains(id));
            if !is_here || !self.leases.contains_key(&requests[0].lease) {
                self.world.unheld.fetch_add(1, Relaxed);
                let decline = Decline { reason: "lease".into() };
                self.send(decline.reply(header.request).unwrap(), self.character.round_trip / 2);
                return self.book.lock().expect("no panic").declined(header.request);
            }
        }
        let partials = self.world.kernel.compute(&*self.world.experts, header.layer, &requests).unwrap();
        let answers: Vec<Frame> = parts
            .iter()
            .zip(&partials)
            .map(|(part, partials)| {
                let is_work = part.header.kind == Kind::Dispatch;
                let kind = if is_work { Kind::Partials } else { Kind::ChallengeReply };
                let header = Header { kind, ..part.header };
                Frame::new(header, partials.encode(hidden)).unwrap()
            })
            .collect();
        self.answer(answers)
    }

    /// Answers rightly and in time, mostly; `false` when a hub would end the session.
    fn answer(&mut self, answers: Vec<Frame>) -> bool {
        let request = answers[0].header.request;
        let jitter = self.character.round_trip.mul_f64(self.dice.below(300) as f64 / 1000.0);
        let mut after = self.character.round_trip / 2 + jitter;
        if self.dice.happens(self.character.stragglers) {
            after += self.dice.millis(200, 30_000);
        }
        let book = Arc::clone(&self.book);
        let mut book = book.lock().expect("no panic");
        if self.world.is_calm() || !self.dice.happens(self.character.lies) {
            return answers.into_iter().all(|answer| {
                let passes = book.answered(&answer.header, true);
                self.send(answer, after);
                passes
            });
        }
        self.world.lies.fetch_add(1, Relaxed);
        let passes = match draw(self.dice, &answers[0]) {
            Lie::Silence => true,
            Lie::Refusal => {
                self.send(Decline { reason: "paused".into() }.reply(request).unwrap(), after);
                return book.declined(request);
            }
            Lie::Twice => {
                assert!(book.answered(&answers[0].header, true));
                self.send(answers[0].clone(), after);
                self.send(answers[0].clone(), after);
                book.answered(&answers[0].header, false)
            }
            Lie::Wrong(frame) => {
                let passes = book.answered(&frame.header, false);
                self.send(frame, after);
                passes
            }
        };
        // A hub as strict as ours ends the session; a lax one leaves the lie to the backbone.
        passes || self.dice.happens(500)
    }
}
