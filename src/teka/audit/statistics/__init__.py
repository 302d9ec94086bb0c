"""From what a model answered to numbers with intervals; docs/audit_statistics.md has the formulae and the sources."""
