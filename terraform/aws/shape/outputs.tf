output "gpus" {
  description = "GPUs of a node."
  value       = local.gpus
  precondition {
    condition     = local.gpus > 0
    error_message = <<-EOT
      gpu_instance_type: the GPUs of ${var.instance_type} are not in terraform/aws/shape/main.tf. Set gpus_per_node to
      the count that this prints: aws ec2 describe-instance-types --instance-types ${var.instance_type}
      --query 'InstanceTypes[].GpuInfo.Gpus[].Count'
    EOT
  }
}

output "efa_interfaces" {
  description = "EFA interfaces of a node; 0 without EFA."
  value       = local.efa
  precondition {
    condition     = !var.efa || local.cards > 0
    error_message = <<-EOT
      efa: no EFA is known of ${var.instance_type}. Write efa = false, or a larger type, such as g5.8xlarge.
      If the type has EFA, set efa_interfaces to the number that this prints: aws ec2 describe-instance-types
      --instance-types ${var.instance_type} --query 'InstanceTypes[].NetworkInfo.EfaInfo.MaximumEfaInterfaces'
    EOT
  }
}

output "network_interfaces" {
  description = "Network interfaces of the launch template. Empty without EFA."
  value       = local.network_interfaces
}

output "labels" {
  description = "Labels of the GPU nodes."
  # NVIDIA's device plugin runs on nodes with the first label, or with those of Node Feature Discovery.
  value = {
    "nvidia.com/gpu.present"    = "true"
    "training.dtj.dev/gpu-pool" = "true"
  }
}

output "taints" {
  description = "Taints of the GPU nodes: only pods that want a GPU run there."
  value       = [{ key = "nvidia.com/gpu", value = "present", effect = "NO_SCHEDULE" }]
}

output "tolerations" {
  description = "Tolerations of pods that run on the GPU nodes."
  value       = [{ key = "nvidia.com/gpu", operator = "Exists", effect = "NoSchedule" }]
}

output "limits" {
  description = "Limits of a pod that uses a whole node."
  # The node's image reserves 5128 huge pages of 2 MiB for EFA; Libfabric takes its buffers from them.
  value = merge(
    { "nvidia.com/gpu" = tostring(local.gpus) },
    local.efa == 0 ? {} : { "vpc.amazonaws.com/efa" = tostring(local.efa), "hugepages-2Mi" = "5120Mi" },
  )
}
