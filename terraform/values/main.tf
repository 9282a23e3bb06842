# The chart's values and a first job, from what a cloud's module knows. No provider is needed here, so that every cloud
# can use the module and `terraform test` checks every line.

terraform {
  required_version = ">= 1.9"
}

locals {
  version = trimspace(file("${path.module}/../../VERSION"))
  # Helm must delete neither with the release: the claim holds the checkpoints, and the namespace the jobs.
  keep = { "helm.sh/resource-policy" = "keep" }
  namespace = var.job_namespace == "default" ? [] : [
    { apiVersion = "v1", kind = "Namespace", metadata = { name = var.job_namespace, annotations = local.keep } }
  ]
  claim = {
    apiVersion = "v1"
    kind       = "PersistentVolumeClaim"
    metadata   = { name = "shared", namespace = var.job_namespace, annotations = local.keep }
    spec = merge(
      {
        accessModes      = ["ReadWriteMany"]
        storageClassName = var.storage_class
        resources        = { requests = { storage = var.claim_size } }
      },
      var.volume_name == "" ? {} : { volumeName = var.volume_name },
    )
  }

  chart_values = {
    image        = { registry = var.image_registry }
    extraObjects = concat(local.namespace, var.objects, [local.claim])
  }

  job = {
    apiVersion = "training.dtj.dev/v1alpha1"
    kind       = "DistributedTrainingJob"
    metadata   = { name = "first", namespace = var.job_namespace }
    spec = merge(
      {
        replicas   = var.nodes
        image      = "${var.image_registry}/dtj-trainer:${local.version}-cuda"
        entrypoint = { module = "dtj_trainer.examples.gpt", args = ["--steps", "300", "--batch-size", "32"] }
        resources  = { requests = { memory = "16Gi" }, limits = var.limits }
        checkpoint = { volume = { claimName = "shared" }, everySteps = 20, keep = 3 }
      },
      length(var.tolerations) == 0 ? {} : { tolerations = var.tolerations },
      length(var.node_selector) == 0 ? {} : { nodeSelector = var.node_selector },
      length(var.env) == 0 ? {} : { env = [for name, value in var.env : { name = name, value = value }] },
    )
  }
}
