simulate --no-runs llama-70b-96 train.schedule=gpipe
