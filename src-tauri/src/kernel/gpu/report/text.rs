//! The report as people read it.

use std::fmt;

use super::{AdapterReport, Measured, Report};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for adapter in &self.adapters {
            writeln!(f, "{adapter}")?;
        }
        match &self.why {
            Some(why) => writeln!(f, "no GPU: {why}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for AdapterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        writeln!(f, "  identity    {}", self.identity)?;
        writeln!(f, "  back end    {}, {}, {} {}", self.backend, self.kind, self.driver, self.driver_info)?;
        if let Some(why) = &self.passed_over {
            return writeln!(f, "  not used    {why}");
        }
        let bytes = |figure: Option<u64>| figure.map_or_else(|| "unknown".to_string(), gib);
        let memory = &self.memory;
        write!(f, "  memory      {}", bytes(memory.heap_bytes))?;
        write!(f, ", budget {}, used {}", bytes(memory.budget_bytes), bytes(memory.used_bytes))?;
        writeln!(f, ", offered for experts {}", gib(self.offer_bytes))?;
        let limits = [self.binding_bytes_max, self.buffer_bytes_max].map(gib);
        writeln!(
            f,
            "  limits      binding {}, buffer {}, {} threads",
            limits[0], limits[1], self.workgroup_threads_max
        )?;
        let subgroups = match self.subgroup_sizes {
            Some([least, most]) => format!("subgroups of {least} to {most}"),
            None => "no subgroups".to_string(),
        };
        let clock = if self.timestamps { "a clock" } else { "no clock" };
        let dot = match self.packed_int8_dot {
            Some(true) => "packed int8 dots",
            Some(false) => "no packed int8 dots",
            None => "packed int8 dots unknown",
        };
        writeln!(f, "  features    {subgroups}, {clock}, {dot}")?;
        match (&self.measured, &self.fault) {
            (Some(measured), _) => write!(f, "{measured}"),
            (None, Some(fault)) => writeln!(f, "  fault       {fault}"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read = &self.read;
        writeln!(f, "  reads       {:.1} GB/s ({} threads a workgroup)", read.gb_per_s, read.workgroup)?;
        for result in &self.self_test {
            match &result.fault {
                None => writeln!(f, "  self-test   {:<5} right", result.weights)?,
                Some(fault) => writeln!(f, "  self-test   {:<5} refused: {fault}", result.weights)?,
            }
        }
        // Those that nobody has tuned are in the JSON form.
        for kernel in self.kernels.iter().filter(|k| k.chosen) {
            if let Some(us) = kernel.request_us {
                writeln!(f, "  kernel      {}: {us:.0} µs a request", kernel.kernel)?;
            }
        }
        for kernel in &self.kernels {
            if let Some(fault) = &kernel.fault {
                writeln!(f, "  dropped     {}: {fault}", kernel.kernel)?;
            }
        }
        for t in &self.throughput {
            writeln!(
                f,
                "  experts     {:>2} rows, {} assignments: {:.2} ms ({:.2} ms on the device), {:.0} assignments/s",
                t.rows, t.assignments, t.ms, t.device_ms, t.assignments_per_s
            )?;
        }
        Ok(())
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::super::*;

    #[test]
    fn a_machine_without_adapters_says_why_in_both_forms() {
        let report = Report { adapters: Vec::new(), why: Some("expected a GPU, got none".into()) };
        assert_eq!(report.to_string(), "no GPU: expected a GPU, got none\n");
        let json = serde_json::to_string(&report).expect("JSON");
        assert_eq!(json, r#"{"adapters":[],"why":"expected a GPU, got none"}"#);
    }
}
