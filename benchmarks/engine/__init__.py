"""A serving engine with and without anchorstore: reused tokens, time to first token, quality.

::

    traces (pure) ---> run: each request to every server in turn ---> figures ---> report
    reuse  (pure)        |  client: streaming /v1/completions
                         |  servers: stock vLLM and vLLM with the store, or endpoints that run
    recall and text models ---> quality: accuracy, bits a byte, beside the controls

`python -m benchmarks.engine --help` says what can be asked for.
"""
