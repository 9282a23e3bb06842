// kube-scheduler with the plugin of scheduler-plugins for gangs alone: its other plugins bring the clients of three
// metrics providers. Its PodGroup controller is left out, too: it writes the status, which neither the plugin nor
// our operator reads.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme"
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(coscheduling.Name, coscheduling.New))))
}
