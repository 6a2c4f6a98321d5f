// Command kubelet is Kubernetes' own, with the guest's clock.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kubelet/app"

	_ "nfs-csi/test/kubernetes/cluster/clock"
)

func main() { os.Exit(cli.Run(app.NewKubeletCommand(context.Background()))) }
