list clusters
