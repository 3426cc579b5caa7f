"""Reads, makes, measures and converts workloads; everything comes out as `kvcache.request.Requests`.

It does not know engines, caches or time spent: only who asks when, for how many tokens, of which content.
"""
