# Plans and applies the whole module against the providers' real schemas. The providers are mocked: nothing is created.

mock_provider "aws" {
  source = "./tests/mocks"
}

mock_provider "helm" {}

variables {
  region             = "us-west-2"
  availability_zones = ["us-west-2a", "us-west-2b"]
  api_cidrs          = ["203.0.113.7/32"]
  gpu_instance_type  = "g5.xlarge"
  gpu_nodes          = { desired = 2 }
  image_registry     = "111122223333.dkr.ecr.us-west-2.amazonaws.com/you"
}

run "smallest" {
  assert {
    condition     = aws_eks_cluster.this.vpc_config[0].public_access_cidrs == toset(["203.0.113.7/32"])
    error_message = "only the addresses in api_cidrs reach the Kubernetes API"
  }
  assert {
    condition     = length(distinct([for subnet in aws_subnet.private : subnet.cidr_block])) == 2
    error_message = "each zone has a private subnet of its own"
  }
  assert {
    condition     = jsondecode(aws_eks_addon.before_nodes["vpc-cni"].configuration_values).enableNetworkPolicy == "true"
    error_message = "the jobs' NetworkPolicies are enforced"
  }
  assert {
    condition     = aws_eks_node_group.gpu.ami_type == "AL2023_x86_64_NVIDIA"
    error_message = "the GPU nodes have NVIDIA's driver"
  }
  assert {
    condition     = one(aws_eks_node_group.gpu.taint).key == "nvidia.com/gpu"
    error_message = "pods without a GPU stay off the GPU nodes"
  }
  assert {
    condition = (
      length(aws_launch_template.gpu.network_interfaces) == 0 && length(aws_placement_group.gpu) == 0 &&
      length(helm_release.efa) == 0
    )
    error_message = "without EFA there is nothing of EFA"
  }
  assert {
    condition     = aws_launch_template.gpu.vpc_security_group_ids == toset(["sg-0c1a57e0000000000"])
    error_message = "the GPU nodes are in the cluster's security group"
  }
  assert {
    condition     = aws_launch_template.gpu.metadata_options[0].http_tokens == "required"
    error_message = "the metadata service is reached with a token alone"
  }
  assert {
    condition     = length(aws_efs_mount_target.this) == 2 && length(aws_fsx_lustre_file_system.this) == 0
    error_message = "EFS is reached from each zone"
  }
  assert {
    condition     = aws_eks_addon.csi.addon_name == "aws-efs-csi-driver"
    error_message = "the driver is that of the filesystem"
  }
}

run "chart_has_the_claim_and_its_storage_class" {
  assert {
    condition = [for each in yamldecode(helm_release.dtj.values[0]).extraObjects : each.kind] == [
      "StorageClass", "PersistentVolumeClaim"
    ]
    error_message = "a claim of EFS needs a StorageClass"
  }
  assert {
    condition     = strcontains(helm_release.dtj.values[0], aws_efs_file_system.this[0].id)
    error_message = "the StorageClass is that of the filesystem"
  }
  assert {
    condition     = yamldecode(helm_release.dtj.values[0]).extraObjects[0].parameters.uid == "65532"
    error_message = "jobs run as 65532 and must be able to write"
  }
  assert {
    condition     = fileexists("${helm_release.dtj.chart}/Chart.yaml")
    error_message = "the chart of this tree is installed"
  }
  assert {
    condition     = helm_release.dtj.namespace == "dtj-system" && helm_release.dtj.create_namespace
    error_message = "the operator has a namespace of its own"
  }
  assert {
    condition     = yamldecode(output.job).spec.resources.limits == { "nvidia.com/gpu" = "1" }
    error_message = "the first job uses the GPU of each node"
  }
}

run "more_values_take_precedence" {
  variables {
    chart_values = "kueue: {enabled: true}"
  }
  assert {
    condition     = helm_release.dtj.values[1] == "kueue: {enabled: true}"
    error_message = "helm merges a later file over an earlier one"
  }
}

run "efa_with_lustre" {
  variables {
    gpu_instance_type     = "p5.48xlarge"
    gpu_availability_zone = "us-west-2b"
    efa                   = true
    storage               = "fsx"
    fsx                   = { capacity_gib = 4800 }
  }
  assert {
    condition     = length(aws_launch_template.gpu.network_interfaces) == 33
    error_message = "one interface for the node's address, and EFA on 32 cards"
  }
  assert {
    condition     = aws_launch_template.gpu.network_interfaces[0].interface_type == "interface"
    error_message = "EFA-only can't be the first interface"
  }
  assert {
    condition     = alltrue([for each in aws_launch_template.gpu.network_interfaces : length(each.security_groups) > 1])
    error_message = "each interface is in the group of the cluster and in that of EFA"
  }
  assert {
    condition = (
      aws_vpc_security_group_ingress_rule.efa[0].ip_protocol == "-1" &&
      aws_vpc_security_group_egress_rule.efa[0].ip_protocol == "-1"
    )
    error_message = "EFA needs all traffic of the group, in and out"
  }
  assert {
    condition     = aws_placement_group.gpu[0].strategy == "cluster"
    error_message = "EFA nodes stand next to each other"
  }
  assert {
    condition     = strcontains(base64decode(aws_launch_template.gpu.user_data), "LimitMEMLOCK=infinity")
    error_message = "pods that do not run as root need the node's limit of locked memory raised"
  }
  assert {
    condition     = startswith(base64decode(aws_launch_template.gpu.user_data), "MIME-Version: 1.0\n")
    error_message = "EKS merges user data only in MIME parts"
  }
  assert {
    condition     = yamldecode(helm_release.efa[0].values[0]).supportedInstanceLabels.values == ["p5.48xlarge"]
    error_message = "the EFA plugin runs on the GPU nodes, also of types that its chart does not list"
  }
  assert {
    condition     = yamldecode(helm_release.nvidia.values[0]).mofedEnabled == false
    error_message = "NVIDIA's plugin must leave the RDMA devices to the EFA plugin"
  }
  assert {
    condition     = aws_nat_gateway.this.subnet_id == aws_subnet.public["us-west-2b"].id
    error_message = "the way out is in the zone of the GPU nodes"
  }
  assert {
    condition     = aws_eks_node_group.gpu.subnet_ids == toset([aws_subnet.private["us-west-2b"].id])
    error_message = "EFA nodes are in one zone"
  }
  assert {
    condition     = aws_fsx_lustre_file_system.this[0].subnet_ids[0] == aws_subnet.private["us-west-2b"].id
    error_message = "Lustre is in the zone of the GPU nodes"
  }
  assert {
    condition     = keys(aws_vpc_security_group_ingress_rule.storage_from_nodes) == ["callbacks", "lustre"]
    error_message = "Lustre's ports are open for the nodes"
  }
  assert {
    condition = [for each in yamldecode(helm_release.dtj.values[0]).extraObjects : each.kind] == [
      "PersistentVolume", "Job", "PersistentVolumeClaim"
    ]
    error_message = "a claim of Lustre needs a volume, and a job that gives it to the jobs' user"
  }
  assert {
    condition = (
      yamldecode(helm_release.dtj.values[0]).extraObjects[0].spec.csi.volumeAttributes.mountname == "abcdefgh" &&
      yamldecode(helm_release.dtj.values[0]).extraObjects[0].spec.capacity.storage == "4800Gi"
    )
    error_message = "the volume is the filesystem"
  }
  assert {
    condition     = yamldecode(output.job).spec.resources.limits["vpc.amazonaws.com/efa"] == "32"
    error_message = "the first job uses EFA"
  }
}

run "capacity_block" {
  variables {
    gpu_instance_type       = "p5.48xlarge"
    efa                     = true
    gpu_capacity_type       = "CAPACITY_BLOCK"
    capacity_reservation_id = "cr-0123456789abcdef0"
  }
  assert {
    condition     = aws_launch_template.gpu.instance_market_options[0].market_type == "capacity-block"
    error_message = "the launch template buys from the block"
  }
  assert {
    condition     = aws_launch_template.gpu.instance_type == "p5.48xlarge"
    error_message = "with a capacity block the type stands in the launch template"
  }
  assert {
    condition     = length(aws_placement_group.gpu) == 0
    error_message = "the nodes of a capacity block have their place"
  }
}

run "nodes_that_an_autoscaler_starts" {
  variables {
    gpu_nodes = { desired = 0, max = 8 }
  }
  assert {
    condition = (
      aws_eks_node_group.gpu.scaling_config[0].max_size == 8 && aws_eks_node_group.gpu.scaling_config[0].min_size == 0
    )
    error_message = "a pool may begin empty"
  }
  assert {
    condition     = yamldecode(output.job).spec.replicas == 1
    error_message = "a job has at least one pod"
  }
}
