//! CPU affinity and topology, priorities, schedstat, cgroup quota, page residency and tracefs: small safe wrappers.
