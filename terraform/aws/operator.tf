# The device plugins, and the operator with the claim `shared`.

module "values" {
  source         = "../values"
  image_registry = var.image_registry
  job_namespace  = var.job_namespace
  objects        = concat(local.efs_objects, local.fsx_volume, local.fsx_owner)
  storage_class  = local.efs ? "dtj-shared" : ""
  volume_name    = local.efs ? "" : "dtj-shared"
  claim_size     = local.efs ? "100Gi" : "${var.fsx.capacity_gib}Gi" # EFS ignores it, and grows
  nodes          = max(var.gpu_nodes.desired, 1)
  limits         = module.shape.limits
  tolerations    = module.shape.tolerations
  node_selector  = { "training.dtj.dev/gpu-pool" = "true" }
  env            = var.efa ? { NCCL_DEBUG = "INFO" } : {}
}

resource "helm_release" "nvidia" {
  name       = "nvidia-device-plugin"
  namespace  = "kube-system"
  repository = "https://nvidia.github.io/k8s-device-plugin"
  chart      = "nvidia-device-plugin"
  version    = "0.17.4"
  # From 0.19 on, the plugin would give every GPU container all RDMA devices, which are the EFA plugin's to give.
  values     = [yamlencode({ mofedEnabled = false })]
  depends_on = [aws_eks_node_group.gpu]
}

resource "helm_release" "efa" {
  count      = var.efa ? 1 : 0
  name       = "efa"
  namespace  = "kube-system"
  repository = "https://aws.github.io/eks-charts"
  chart      = "aws-efa-k8s-device-plugin"
  values = [yamlencode({
    tolerations             = module.shape.tolerations
    supportedInstanceLabels = { keys = ["node.kubernetes.io/instance-type"], values = [var.gpu_instance_type] }
  })]
  depends_on = [aws_eks_node_group.gpu]
}

resource "helm_release" "dtj" {
  name             = "dtj"
  namespace        = "dtj-system"
  create_namespace = true
  chart            = coalesce(var.chart, "${path.module}/../../charts/dtj-operator")
  values           = compact([module.values.chart_values, var.chart_values])
  timeout          = 600
  depends_on = [
    aws_eks_addon.on_nodes, aws_eks_addon.csi, aws_eks_node_group.system, aws_efs_mount_target.this,
  ]
}
