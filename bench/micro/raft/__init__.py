"""RouteKeeper's raft mode against ZooKeeper and etcd, on one machine, in one run."""
