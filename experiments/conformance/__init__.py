"""Conformance cases: what an engine's own tests assert, as data, against our policy objects. One adapter a level."""
