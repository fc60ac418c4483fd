whatif llama-70b-96 search.strategy=manual plan={"llm":{"tp":8,"pp":4,"dp":3}} --no-runs -j 1 --vary train.global_batch=48,100 --vary cluster.nodes=12,11,24 --tokens 100B --days 60 --csv -
