// Command kube-controller-manager is Kubernetes' own, with the guest's clock.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"

	_ "nfs-csi/test/kubernetes/cluster/clock"
)

func main() { os.Exit(cli.Run(app.NewControllerManagerCommand())) }
