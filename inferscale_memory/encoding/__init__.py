"""From committed facts to chunks: what each is encoded behind, the books about it, and the background encoder.

============ ==================================================================================
``policies`` what a fact is prefilled behind, and the encode request made of it
``ledger``   chunk of each fact, who saw whom, the derived queue, tombstones (``tables`` below it)
``leases``   which encoding processes are alive
``jobs``     one fact through the engine, with retries
``encoder``  the background thread, ``flush``, parked facts (``_loop`` below it)
``purge``    deletes the files of tombstoned chunks
``sources``  readers of existing files, for the offline encoder
============ ==================================================================================
"""
