// Command etcd is etcd's own, with the guest's clock.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"

	_ "nfs-csi/test/kubernetes/cluster/clock"
)

func main() { etcdmain.Main(os.Args) }
