# Runs for real: the module has no provider.

variables {
  image_registry = "registry.example/you"
  storage_class  = "dtj-shared"
  claim_size     = "100Gi"
  nodes          = 2
  limits         = { "nvidia.com/gpu" = "8", "vpc.amazonaws.com/efa" = "32" }
  tolerations    = [{ key = "nvidia.com/gpu", operator = "Exists", effect = "NoSchedule" }]
}

run "claim_named_shared_in_the_namespace_of_the_jobs" {
  command = plan
  assert {
    condition     = yamldecode(output.chart_values).image.registry == "registry.example/you"
    error_message = "the operator's image comes from the registry"
  }
  assert {
    condition     = [for each in yamldecode(output.chart_values).extraObjects : each.kind] == ["PersistentVolumeClaim"]
    error_message = "the namespace default exists, so only the claim is created"
  }
  assert {
    condition = (
      yamldecode(output.chart_values).extraObjects[0].metadata.name ==
      yamldecode(output.job).spec.checkpoint.volume.claimName
    )
    error_message = "the first job must save to the claim that is created"
  }
  assert {
    condition     = yamldecode(output.chart_values).extraObjects[0].spec.accessModes == ["ReadWriteMany"]
    error_message = "pods on several nodes mount the claim"
  }
  assert {
    condition     = !contains(keys(yamldecode(output.chart_values).extraObjects[0].spec), "volumeName")
    error_message = "the StorageClass creates the volume"
  }
}

run "namespace_of_its_own" {
  command = plan
  variables {
    job_namespace = "research"
    objects       = [{ apiVersion = "v1", kind = "PersistentVolume", metadata = { name = "lustre" } }]
    storage_class = ""
    volume_name   = "lustre"
  }
  assert {
    condition = [for each in yamldecode(output.chart_values).extraObjects : each.kind] == [
      "Namespace", "PersistentVolume", "PersistentVolumeClaim"
    ]
    error_message = "the namespace comes before the claim in it"
  }
  assert {
    condition = alltrue([
      for each in yamldecode(output.chart_values).extraObjects :
      each.metadata.annotations["helm.sh/resource-policy"] == "keep" if each.kind != "PersistentVolume"
    ])
    error_message = "helm uninstall must delete neither the checkpoints nor the jobs"
  }
  assert {
    condition     = yamldecode(output.chart_values).extraObjects[2].spec.volumeName == "lustre"
    error_message = "the claim binds the volume"
  }
  assert {
    condition     = yamldecode(output.job).metadata.namespace == "research"
    error_message = "the first job is in the namespace of the claim"
  }
}

run "first_job_uses_whole_nodes" {
  command = plan
  assert {
    condition = (
      yamldecode(output.job).spec.replicas == 2 && yamldecode(output.job).spec.resources.limits["nvidia.com/gpu"] == "8"
    )
    error_message = "one pod for each node, with all of its GPUs"
  }
  assert {
    condition     = yamldecode(output.job).spec.resources.limits["vpc.amazonaws.com/efa"] == "32"
    error_message = "and with all of its EFA interfaces"
  }
  assert {
    condition     = yamldecode(output.job).spec.tolerations[0].key == "nvidia.com/gpu"
    error_message = "the pods tolerate the taint of the GPU nodes"
  }
  assert {
    condition = (
      yamldecode(output.job).spec.image == "registry.example/you/dtj-trainer:${trimspace(file("../../VERSION"))}-cuda"
    )
    error_message = "the image has the name and tag that `make release-images` pushes"
  }
}

run "registry_with_a_scheme_is_rejected" {
  command = plan
  variables {
    image_registry = "https://registry.example/you"
  }
  expect_failures = [var.image_registry]
}

run "claim_without_a_unit_is_rejected" {
  command = plan
  variables {
    claim_size = "100"
  }
  expect_failures = [var.claim_size]
}

run "namespace_in_capitals_is_rejected" {
  command = plan
  variables {
    job_namespace = "Research"
  }
  expect_failures = [var.job_namespace]
}

run "namespace_of_the_operator_is_rejected" {
  command = plan
  variables {
    job_namespace = "dtj-system"
  }
  expect_failures = [var.job_namespace]
}

run "namespace_of_kubernetes_is_rejected" {
  command = plan
  variables {
    job_namespace = "kube-system"
  }
  expect_failures = [var.job_namespace]
}
