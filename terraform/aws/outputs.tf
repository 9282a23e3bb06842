output "kubeconfig" {
  description = "Command that writes the login into ~/.kube/config."
  value       = "aws eks update-kubeconfig --region ${var.region} --name ${aws_eks_cluster.this.name}"
}

output "job" {
  description = "A first job that uses all GPU nodes: terraform output -raw job | kubectl apply -f -"
  value       = module.values.job
}

output "gpus_per_node" {
  description = "GPUs of a node, which is the number of ranks of a pod."
  value       = module.shape.gpus
}

output "efa_interfaces_per_node" {
  description = "EFA interfaces of a node; 0 without EFA."
  value       = module.shape.efa_interfaces
}

output "filesystem_id" {
  description = "The shared filesystem."
  value       = one(concat(aws_efs_file_system.this[*].id, aws_fsx_lustre_file_system.this[*].id))
}
