"""The benchmark: Backstay beside the bare transactions and hand-written sagas, interleaved on the same servers."""
