# Two nodes for the operator and the add-ons, and the GPU nodes in one zone.

module "shape" {
  source         = "./shape"
  instance_type  = var.gpu_instance_type
  efa            = var.efa
  gpus_per_node  = var.gpus_per_node
  efa_interfaces = var.efa_interfaces
}

locals {
  capacity_block = var.gpu_capacity_type == "CAPACITY_BLOCK"
  # A capacity block has its own place, next to each other already.
  placement_group = var.efa && !local.capacity_block

  # Containers inherit containerd's limit of locked memory, 8 MiB by default, but RDMA locks all that it sends. A pod
  # that does not run as root can't raise the limit, whatever its capabilities. Runs before the node joins the cluster.
  user_data = <<-EOT
    MIME-Version: 1.0
    Content-Type: multipart/mixed; boundary="//"

    --//
    Content-Type: text/x-shellscript; charset="us-ascii"

    #!/bin/bash
    set -euo pipefail
    mkdir -p /etc/systemd/system/containerd.service.d
    printf '[Service]\nLimitMEMLOCK=infinity\n' > /etc/systemd/system/containerd.service.d/10-memlock.conf
    systemctl daemon-reload
    --//--
  EOT
}

resource "aws_eks_node_group" "system" {
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = "system"
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = [for zone in var.availability_zones : aws_subnet.private[zone].id]
  ami_type        = "AL2023_x86_64_STANDARD"
  instance_types  = [var.system_instance_type]
  scaling_config {
    desired_size = 2
    min_size     = 2
    max_size     = 3
  }
  update_config {
    max_unavailable = 1
  }
  depends_on = [aws_eks_addon.before_nodes, aws_iam_role_policy_attachment.node]
}

resource "aws_placement_group" "gpu" {
  count    = local.placement_group ? 1 : 0
  name     = "${var.name}-gpu"
  strategy = "cluster"
}

resource "aws_launch_template" "gpu" {
  name_prefix            = "${var.name}-gpu-"
  update_default_version = true
  instance_type          = local.capacity_block ? var.gpu_instance_type : null
  user_data              = var.efa ? base64encode(local.user_data) : null
  # With network_interfaces the groups belong to each of them.
  vpc_security_group_ids = var.efa ? null : [aws_eks_cluster.this.vpc_config[0].cluster_security_group_id]

  dynamic "network_interfaces" {
    for_each = module.shape.network_interfaces
    content {
      network_card_index    = network_interfaces.value.card
      device_index          = network_interfaces.value.device
      interface_type        = network_interfaces.value.type
      delete_on_termination = true
      security_groups = [
        aws_eks_cluster.this.vpc_config[0].cluster_security_group_id,
        aws_security_group.efa[0].id,
      ]
    }
  }

  dynamic "placement" {
    for_each = aws_placement_group.gpu
    content {
      group_name = placement.value.name
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = var.capacity_reservation_id[*]
    content {
      capacity_reservation_target {
        capacity_reservation_id = capacity_reservation_specification.value
      }
    }
  }

  dynamic "instance_market_options" {
    for_each = local.capacity_block ? [1] : []
    content {
      market_type = "capacity-block"
    }
  }

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_size           = var.gpu_disk_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1 # pods do not get the node's role
  }

  tag_specifications {
    resource_type = "instance"
    tags          = merge(var.tags, { Name = "${var.name}-gpu" })
  }
}

resource "aws_eks_node_group" "gpu" {
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = "gpu"
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = [aws_subnet.private[local.gpu_zone].id]
  ami_type        = "AL2023_x86_64_NVIDIA"
  capacity_type   = var.gpu_capacity_type
  instance_types  = local.capacity_block ? null : [var.gpu_instance_type]
  labels          = module.shape.labels

  scaling_config {
    desired_size = var.gpu_nodes.desired
    min_size     = coalesce(var.gpu_nodes.min, var.gpu_nodes.desired)
    max_size     = coalesce(var.gpu_nodes.max, max(var.gpu_nodes.desired, 1))
  }

  launch_template {
    id      = aws_launch_template.gpu.id
    version = aws_launch_template.gpu.latest_version
  }

  dynamic "taint" {
    for_each = module.shape.taints
    content {
      key    = taint.value.key
      value  = taint.value.value
      effect = taint.value.effect
    }
  }

  update_config {
    max_unavailable = 1
  }

  # EKS replaces a node that its monitoring agent calls broken, ten minutes after the jobs have left it.
  node_repair_config {
    enabled = true
  }

  depends_on = [aws_eks_addon.before_nodes, aws_iam_role_policy_attachment.node]
}
