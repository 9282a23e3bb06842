# The control plane, its roles, and the add-ons that run on every node.

locals {
  policies = "arn:${data.aws_partition.current.partition}:iam::aws:policy"
  trust = {
    for service in ["eks", "ec2", "pods.eks"] : service => jsonencode({
      Version = "2012-10-17"
      Statement = [{
        Effect    = "Allow"
        Principal = { Service = "${service}.amazonaws.com" }
        Action    = service == "pods.eks" ? ["sts:AssumeRole", "sts:TagSession"] : ["sts:AssumeRole"]
      }]
    })
  }
}

resource "aws_iam_role" "cluster" {
  name               = "${var.name}-cluster"
  assume_role_policy = local.trust["eks"]
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "${local.policies}/AmazonEKSClusterPolicy"
}

resource "aws_eks_cluster" "this" {
  name     = var.name
  version  = var.kubernetes_version
  role_arn = aws_iam_role.cluster.arn

  vpc_config {
    subnet_ids              = [for zone in var.availability_zones : aws_subnet.private[zone].id]
    endpoint_private_access = true
    endpoint_public_access  = true
    public_access_cidrs     = var.api_cidrs
  }

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  # The add-ons below take the place of the ones that EKS installs without a version that it manages.
  bootstrap_self_managed_addons = false

  depends_on = [aws_iam_role_policy_attachment.cluster]
}

resource "aws_iam_role" "node" {
  name               = "${var.name}-node"
  assume_role_policy = local.trust["ec2"]
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each   = toset(["AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly"])
  role       = aws_iam_role.node.name
  policy_arn = "${local.policies}/${each.key}"
}

# Nodes become Ready only with the first two, so these are created before any node. The network plug-in enforces
# NetworkPolicies only with this value, and torch's own ports authenticate nobody.
resource "aws_eks_addon" "before_nodes" {
  for_each = {
    vpc-cni                = jsonencode({ enableNetworkPolicy = "true" })
    kube-proxy             = null
    eks-pod-identity-agent = null
  }
  cluster_name                = aws_eks_cluster.this.name
  addon_name                  = each.key
  configuration_values        = each.value
  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"
}

# The monitoring agent sets AcceleratedHardwareReady, a sign that makes jobs leave a node (docs/sick-nodes.md).
resource "aws_eks_addon" "on_nodes" {
  for_each                    = toset(["coredns", "eks-node-monitoring-agent"])
  cluster_name                = aws_eks_cluster.this.name
  addon_name                  = each.key
  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"
  depends_on                  = [aws_eks_node_group.system]
}
