//! Statistics for serde.

use postread_sys::hist::Hist;
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::attrs::WqAttrs;
use crate::stats::{CpuCounts, PoolStats, WorkerStats, WqStats};

/// The count, the quantiles and the buckets that are not empty; all times in nanoseconds.
struct Times<'a>(&'a Hist);

impl Serialize for Times<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let hist = self.0;
        let ns = |time: Option<std::time::Duration>| time.map(|t| t.as_nanos() as u64);
        let mut s = serializer.serialize_struct("Hist", 6)?;
        s.serialize_field("count", &hist.count())?;
        s.serialize_field("mean_ns", &ns(hist.mean()))?;
        s.serialize_field("p50_ns", &ns(hist.p50()))?;
        s.serialize_field("p99_ns", &ns(hist.p99()))?;
        s.serialize_field("max_ns", &ns(hist.max()))?;
        let buckets: Vec<(u64, u64, u64)> =
            hist.buckets().map(|(low, high, n)| (low.as_nanos() as u64, high.as_nanos() as u64, n)).collect();
        s.serialize_field("buckets", &buckets)?;
        s.end()
    }
}

impl Serialize for CpuCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("CpuCounts", 3)?;
        s.serialize_field("cpu", &self.cpu)?;
        s.serialize_field("queued", &self.queued)?;
        s.serialize_field("started", &self.started)?;
        s.end()
    }
}

impl Serialize for WqAttrs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("WqAttrs", 4)?;
        s.serialize_field("nice", &self.nice)?;
        s.serialize_field("cpumask", &self.cpumask.as_ref().map(ToString::to_string))?;
        s.serialize_field("affinity_scope", self.affn_scope.name())?;
        s.serialize_field("affinity_strict", &self.affn_strict)?;
        s.end()
    }
}

impl Serialize for WorkerStats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("WorkerStats", 5)?;
        s.serialize_field("name", &self.name)?;
        s.serialize_field("tid", &self.tid)?;
        s.serialize_field("run_time_ns", &self.sched.run_time_ns)?;
        s.serialize_field("run_delay_ns", &self.sched.run_delay_ns)?;
        s.serialize_field("slices", &self.sched.slices)?;
        s.end()
    }
}

impl Serialize for PoolStats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("PoolStats", 11)?;
        s.serialize_field("name", &self.name)?;
        s.serialize_field("cpus", &self.pod.to_string())?;
        s.serialize_field("cpu", &self.cpu)?;
        s.serialize_field("priority", &self.priority.map(|p| p.to_string()))?;
        s.serialize_field("workers", &self.workers)?;
        s.serialize_field("run_time_ns", &self.sched.run_time_ns)?;
        s.serialize_field("run_delay_ns", &self.sched.run_delay_ns)?;
        s.serialize_field("slices", &self.sched.slices)?;
        s.serialize_field("running", &self.running)?;
        s.serialize_field("idle", &self.idle)?;
        s.serialize_field("thread_failures", &self.thread_failures)?;
        s.end()
    }
}

impl Serialize for WqStats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("WqStats", 24)?;
        s.serialize_field("name", &self.name)?;
        let flags: Vec<&str> = self.flags.iter_names().map(|(name, _)| name).collect();
        s.serialize_field("flags", &flags)?;
        s.serialize_field("attrs", &self.attrs)?;
        s.serialize_field("max_active", &self.max_active)?;
        s.serialize_field("min_active", &self.min_active)?;
        s.serialize_field("queued", &self.queued)?;
        s.serialize_field("executed", &self.executed)?;
        s.serialize_field("cancelled", &self.cancelled)?;
        s.serialize_field("in_flight", &self.in_flight)?;
        s.serialize_field("panics", &self.panics)?;
        s.serialize_field("migrated", &self.migrated)?;
        s.serialize_field("cpu_time_ns", &(self.cpu_time.as_nanos() as u64))?;
        s.serialize_field("cpu_hogs", &self.cpu_hogs)?;
        s.serialize_field("managed_wakeups", &self.managed_wakeups)?;
        s.serialize_field("repatriated", &self.repatriated)?;
        s.serialize_field("maydays", &self.maydays)?;
        s.serialize_field("rescued", &self.rescued)?;
        s.serialize_field("cpus", &self.cpus)?;
        s.serialize_field("queue_to_activate", &Times(&self.queue_to_activate))?;
        s.serialize_field("activate_to_start", &Times(&self.activate_to_start))?;
        s.serialize_field("queue_to_start", &Times(&self.queue_to_start))?;
        s.serialize_field("run", &Times(&self.run))?;
        s.serialize_field("pools", &self.pools)?;
        s.serialize_field("group", &self.group.as_ref().map(|g| g.to_string()))?;
        s.end()
    }
}
