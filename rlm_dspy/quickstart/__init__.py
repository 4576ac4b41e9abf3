"""``python -m rlm_dspy.quickstart``: one real run over a document of several MB, watched as it happens.

    __main__.py   the run itself, and what it prints
    journal.py    the document, made anew each time, and the answer that is true by construction
    models.py     which language model is at hand: a key, a local server, or a script
    script.py     the scripted model: replies written beforehand whose code really runs in the sandbox

``script.py`` is also an example for ``rlm-dspy ask --model scripted:PATH``.
"""
