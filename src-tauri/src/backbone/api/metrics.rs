//! `/metrics`: what the API and the scheduler did, as Prometheus reads it. README documents every name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use axum::http::StatusCode;

use crate::backbone::scheduler::Scheduler;
use crate::dispatch::Counts;
use crate::telemetry::{MetricsPage, Vitals};

/// Requests by path and status; paths are the API's own, so that nobody can make new ones.
#[derive(Debug, Default)]
pub struct Requests(Mutex<BTreeMap<(&'static str, u16), u64>>);

impl Requests {
    /// Counts an answer.
    pub fn count(&self, path: &str, status: StatusCode) {
        let known = ["/v1/chat/completions", "/v1/completions", "/v1/models", "/metrics", "/status", "/healthz"];
        let path = known.into_iter().find(|known| path == *known).unwrap_or("other");
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry((path, status.as_u16())).or_default() += 1;
    }
}

/// The whole page.
pub fn page(scheduler: &Scheduler, requests: &Requests, dispatch: Option<&Counts>, vitals: &Vitals) -> String {
    let counters = scheduler.counters();
    let of = |counter: &AtomicU64| counter.load(Relaxed);
    let seconds = |us: &AtomicU64| of(us) as f64 / 1e6;
    let mut page = MetricsPage::default();

    page.head("kvasir_api_requests_total", "counter", "Answers, by path and status.");
    for ((path, status), n) in &*requests.0.lock().unwrap_or_else(PoisonError::into_inner) {
        page.line(&format!("kvasir_api_requests_total{{path=\"{path}\",status=\"{status}\"}}"), n);
    }
    let gauges = &counters.gauges;
    page.one("kvasir_streams_running", "gauge", "Generations in the batch.", of(&gauges.running));
    page.one("kvasir_streams_waiting", "gauge", "Generations that wait for memory or a turn.", of(&gauges.waiting));
    page.one(
        "kvasir_state_bytes",
        "gauge",
        "Memory taken by the states of running generations.",
        of(&gauges.state_bytes),
    );
    page.one("kvasir_state_bytes_max", "gauge", "The most that they may take.", scheduler.config().state_bytes);
    page.head("kvasir_streams_total", "counter", "Generations, by how they ended.");
    for (end, counter) in
        [("finished", &counters.finished), ("cancelled", &counters.cancelled), ("failed", &counters.failed)]
    {
        page.line(&format!("kvasir_streams_total{{end=\"{end}\"}}"), of(counter));
    }
    page.one("kvasir_prompt_tokens_total", "counter", "Prompt tokens read.", of(&counters.prompt_tokens));
    page.one("kvasir_new_tokens_total", "counter", "Tokens generated.", of(&counters.new_tokens));
    page.one("kvasir_turns_total", "counter", "Times that a step gave a generation tokens.", of(&counters.turns));
    page.one("kvasir_drafts_total", "counter", "Drafts that steps judged.", of(&counters.drafted));
    page.one("kvasir_drafts_accepted_total", "counter", "Drafts that were right.", of(&counters.accepted));
    page.one("kvasir_steps_total", "counter", "Forward passes.", of(&counters.steps));
    page.one("kvasir_step_rows_total", "counter", "Rows of all forward passes.", of(&counters.step_rows));
    page.one("kvasir_step_seconds_total", "counter", "Time of all forward passes.", seconds(&counters.step_us));
    page.one("kvasir_experts_seconds_total", "counter", "Its part for routed experts.", seconds(&counters.experts_us));
    page.one("kvasir_lanes", "gauge", "Forward passes under way at once.", of(&gauges.lanes));
    page.one(
        "kvasir_idle_seconds_total",
        "counter",
        "Time in which every forward pass under way waited for routed experts.",
        seconds(&counters.idle_us),
    );
    page.head("kvasir_assignments_total", "counter", "Routed-expert assignments, by who computed them.");
    for (by, counter) in [("worker", &counters.assignments_remote), ("backbone", &counters.assignments_local)] {
        page.line(&format!("kvasir_assignments_total{{by=\"{by}\"}}"), of(counter));
    }
    if let Some(counts) = dispatch {
        page.one("kvasir_dispatch_requests_total", "counter", "Requests sent to workers.", counts.requests);
        page.head("kvasir_dispatch_failures_total", "counter", "Requests to workers that failed, by why.");
        for (why, n) in
            [("late", counts.late), ("declined", counts.declined), ("lost", counts.lost), ("refused", counts.refused)]
        {
            page.line(&format!("kvasir_dispatch_failures_total{{why=\"{why}\"}}"), n);
        }
        page.one(
            "kvasir_dispatch_recomputed_total",
            "counter",
            "Assignments computed here after all.",
            counts.recomputed,
        );
        page.one("kvasir_dispatch_work_bytes_total", "counter", "Work bytes accepted from workers.", counts.work_bytes);
        trust(&mut page, counts);
    }
    vitals.tell(&mut page);
    page.into_text()
}

/// How honest workers were found to be.
fn trust(page: &mut MetricsPage, counts: &Counts) {
    page.head("kvasir_audits_total", "counter", "Answers of workers that were recomputed, by when.");
    for (when, n) in [
        ("before_use", counts.audits_before_use),
        ("after_use", counts.audits_after_use),
        ("again", counts.audits_again),
    ] {
        page.line(&format!("kvasir_audits_total{{when=\"{when}\"}}"), n);
    }
    page.one("kvasir_audits_dropped_total", "counter", "Audits that found no room to wait.", counts.audits_dropped);
    page.one("kvasir_audit_mismatches_total", "counter", "Answers that were false.", counts.audit_mismatches);
    page.head("kvasir_challenges_total", "counter", "Challenges of devices, by how they ended.");
    for (end, n) in
        [("passed", counts.challenges_passed), ("failed", counts.challenges_failed), ("late", counts.challenges_late)]
    {
        page.line(&format!("kvasir_challenges_total{{end=\"{end}\"}}"), n);
    }
    page.head("kvasir_quarantines_total", "counter", "Workers that were caught, by what was quarantined.");
    for (of, n) in [("wallet", counts.quarantined_wallets), ("device", counts.quarantined_devices)] {
        page.line(&format!("kvasir_quarantines_total{{of=\"{of}\"}}"), n);
    }
    page.one(
        "kvasir_generations_affected_total",
        "counter",
        "Generations that may have used false partials.",
        counts.generations_affected,
    );
}
