"""Shipped for tests and benchmarks: real daemons, fakes.  Nothing else imports it."""
