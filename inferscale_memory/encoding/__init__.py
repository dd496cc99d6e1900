"""From committed facts to chunks: what each is encoded behind, the books about it, and the background encoder.

============= ==================================================================================
``policies``  what a fact is prefilled behind, and the encode request made of it
``ledger``    chunk of each fact, who saw whom, the derived queue, tombstones (``tables`` below it)
``staleness`` its part about chunks that are to be encoded again, since their facts have new neighbours
``announcer`` embeds new facts and marks the chunks that they make stale
``leases``    which encoding processes are alive
``jobs``      one fact through the engine, with retries
``encoder``   the background thread, ``flush``, parked facts (``_loop`` below it; ``pacing``: how often it re-encodes)
``encoders``  one of them for each kind of chunk that a memory's facts have, as one
``purge``     deletes the files of tombstoned chunks
``sources``   readers of existing files, for the offline encoder (``entries``: what the fact store takes of them)
============= ==================================================================================
"""
