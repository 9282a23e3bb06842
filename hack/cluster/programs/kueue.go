// Kueue's own queues, scheduler, controllers, webhooks and topology-aware placement, without its integrations of
// other jobs' kinds: those are two thirds of what would be compiled, and our operator makes its Workloads itself.
package main

import (
	"flag"
	"os"

	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	configapi "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueuev1beta1 "sigs.k8s.io/kueue/apis/kueue/v1beta1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	qcache "sigs.k8s.io/kueue/pkg/cache/queue"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/config"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/core"
	"sigs.k8s.io/kueue/pkg/controller/core/indexer"
	"sigs.k8s.io/kueue/pkg/controller/tas"
	tasindexer "sigs.k8s.io/kueue/pkg/controller/tas/indexer"
	"sigs.k8s.io/kueue/pkg/metrics"
	"sigs.k8s.io/kueue/pkg/scheduler"
	"sigs.k8s.io/kueue/pkg/scheduler/preemption/expectations"
	"sigs.k8s.io/kueue/pkg/webhooks"
)

func must(err error) {
	if err != nil {
		ctrl.Log.Error(err, "can't start")
		os.Exit(1)
	}
}

func main() {
	file := flag.String("config", "", "the Configuration of Kueue")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, schedulingv1.AddToScheme, kueue.AddToScheme, kueuev1beta1.AddToScheme, configapi.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	options, cfg, err := config.Load(scheme, *file)
	must(err)
	config.AddWebhookSettingsTo(&options, &cfg)
	options.Metrics.BindAddress = "0"
	metrics.Register()
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), options)
	must(err)
	ctx := ctrl.SetupSignalHandler()

	expected := expectations.New()
	admitted := schdcache.New(mgr.GetClient())
	requeuer := qcache.NewRequeuer()
	must(mgr.Add(requeuer))
	queues := qcache.NewManager(mgr.GetClient(), admitted, requeuer, qcache.WithPreemptionExpectations(expected))
	must(indexer.Setup(ctx, mgr.GetFieldIndexer()))
	must(tasindexer.SetupIndexes(ctx, mgr.GetFieldIndexer()))
	_, err = core.SetupControllers(mgr, queues, admitted, &cfg, nil, expected, nil)
	must(err)
	_, err = tas.SetupControllers(mgr, queues, admitted, &cfg, nil)
	must(err)
	_, err = webhooks.Setup(mgr, nil)
	must(err)
	must(mgr.AddHealthzCheck("healthz", healthz.Ping))
	must(mgr.AddReadyzCheck("readyz", mgr.GetWebhookServer().StartedChecker()))
	must(mgr.Add(scheduler.New(queues, admitted, mgr.GetClient(), mgr.GetEventRecorderFor(constants.AdmissionName),
		scheduler.WithPreemptionExpectations(expected))))
	go queues.CleanUpOnContext(ctx)
	go admitted.CleanUpOnContext(ctx)
	must(mgr.Start(ctx))
}
