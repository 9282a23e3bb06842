variable "name" {
  description = "Name of the cluster, and prefix of everything else."
  type        = string
  default     = "dtj"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,30}[a-z0-9]$", var.name))
    error_message = "name: write 2 to 32 lower-case letters, digits and '-', such as dtj-prod."
  }
}

variable "region" {
  description = "AWS region, such as us-west-2."
  type        = string
  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region: write a region, such as us-west-2; availability_zones has the zones."
  }
}

variable "availability_zones" {
  description = "Zones of the region. EKS requires two for its control plane; the GPU nodes are in one of them."
  type        = list(string)
  validation {
    condition = (
      length(var.availability_zones) >= 2 && length(var.availability_zones) <= 4 &&
      length(distinct(var.availability_zones)) == length(var.availability_zones)
    )
    error_message = "availability_zones: write two to four different zones, such as [\"us-west-2a\", \"us-west-2b\"]."
  }
  validation {
    condition     = alltrue([for zone in var.availability_zones : startswith(zone, var.region)])
    error_message = "availability_zones: every zone must be in the region ${var.region}, such as ${var.region}a."
  }
}

variable "gpu_availability_zone" {
  description = "Zone of the GPU nodes. EFA does not leave a zone. Default: the first of availability_zones."
  type        = string
  default     = null
  validation {
    condition = try(
      contains(var.availability_zones, coalesce(var.gpu_availability_zone, var.availability_zones[0])), true
    )
    error_message = "gpu_availability_zone: write one of availability_zones: ${join(", ", var.availability_zones)}."
  }
}

variable "api_cidrs" {
  description = "Addresses that reach the Kubernetes API from outside the VPC."
  type        = list(string)
  validation {
    condition     = length(var.api_cidrs) > 0 && alltrue([for cidr in var.api_cidrs : can(cidrnetmask(cidr))])
    error_message = "api_cidrs: write IPv4 ranges that include this machine, such as [\"203.0.113.7/32\"]."
  }
}

variable "vpc_cidr" {
  description = "Addresses of the VPC. Each zone gets an eighth for its nodes and pods."
  type        = string
  default     = "10.0.0.0/16"
  validation {
    condition     = can(cidrnetmask(var.vpc_cidr)) ? tonumber(split("/", var.vpc_cidr)[1]) <= 20 : false
    error_message = "vpc_cidr: write a private IPv4 range of /20 or larger, such as 10.0.0.0/16."
  }
}

variable "kubernetes_version" {
  description = "Kubernetes version of EKS, such as 1.35."
  type        = string
  default     = "1.35"
  validation {
    condition     = can(regex("^1\\.(3[0-9]|[4-9][0-9])$", var.kubernetes_version))
    error_message = "kubernetes_version: write 1.30 or later, without a patch number, such as 1.35."
  }
}

variable "system_instance_type" {
  description = "EC2 instance type of the two nodes for the operator, CoreDNS and the storage driver."
  type        = string
  default     = "m6i.large"
}

variable "gpu_instance_type" {
  description = "EC2 instance type of the GPU nodes. The table in shape/main.tf has the known ones."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", var.gpu_instance_type))
    error_message = "gpu_instance_type: write an EC2 instance type with GPUs, such as p5.48xlarge or g5.xlarge."
  }
}

variable "gpu_nodes" {
  description = "Number of GPU nodes, and the limits for an autoscaler of yours."
  type        = object({ desired = number, min = optional(number), max = optional(number) })
  validation {
    condition = (
      coalesce(var.gpu_nodes.min, var.gpu_nodes.desired) <= var.gpu_nodes.desired &&
      var.gpu_nodes.desired <= coalesce(var.gpu_nodes.max, max(var.gpu_nodes.desired, 1)) && var.gpu_nodes.desired >= 0
    )
    error_message = "gpu_nodes: write min <= desired <= max, such as { desired = 2, min = 0, max = 4 }."
  }
}

variable "gpu_capacity_type" {
  description = "ON_DEMAND, SPOT, or CAPACITY_BLOCK with capacity_reservation_id."
  type        = string
  default     = "ON_DEMAND"
  validation {
    condition     = contains(["ON_DEMAND", "SPOT", "CAPACITY_BLOCK"], var.gpu_capacity_type)
    error_message = "gpu_capacity_type: write ON_DEMAND, SPOT or CAPACITY_BLOCK."
  }
  validation {
    condition     = var.gpu_capacity_type != "CAPACITY_BLOCK" || var.capacity_reservation_id != null
    error_message = "gpu_capacity_type: a capacity block needs capacity_reservation_id, such as cr-0123456789abcdef0."
  }
  validation {
    condition     = var.gpu_capacity_type != "SPOT" || var.capacity_reservation_id == null
    error_message = "gpu_capacity_type: spot nodes use no reservation: write ON_DEMAND, or no capacity_reservation_id."
  }
}

variable "capacity_reservation_id" {
  description = "On-demand capacity reservation or capacity block of the GPU nodes."
  type        = string
  default     = null
  validation {
    condition     = var.capacity_reservation_id == null || can(regex("^cr-[0-9a-f]+$", var.capacity_reservation_id))
    error_message = "capacity_reservation_id: write the id of a reservation, such as cr-0123456789abcdef0, or omit it."
  }
}

variable "efa" {
  description = "Whether the GPU nodes have EFA interfaces, for NCCL between nodes (docs/network.md)."
  type        = bool
  default     = false
}

variable "gpus_per_node" {
  description = "GPUs of a node, for an instance type that shape/main.tf does not know."
  type        = number
  default     = null
}

variable "efa_interfaces" {
  description = "EFA interfaces of a node, for an instance type that shape/main.tf does not know."
  type        = number
  default     = null
}

variable "gpu_disk_gib" {
  description = "Size of a GPU node's root disk, which holds the images and the pods' temporary files."
  type        = number
  default     = 200
  validation {
    condition     = var.gpu_disk_gib >= 50
    error_message = "gpu_disk_gib: write 50 or more: an image with CUDA and torch takes about 10 GiB unpacked."
  }
}

variable "storage" {
  description = "Shared filesystem of the checkpoints: efs (elastic, NFS) or fsx (FSx for Lustre, fast, of one zone)."
  type        = string
  default     = "efs"
  validation {
    condition     = contains(["efs", "fsx"], var.storage)
    error_message = "storage: write efs or fsx."
  }
}

variable "fsx" {
  description = "Size and speed of FSx for Lustre."
  type        = object({ capacity_gib = optional(number, 1200), mbps_per_tib = optional(number, 250) })
  default     = {}
  validation {
    condition     = var.fsx.capacity_gib == 1200 || (var.fsx.capacity_gib > 0 && var.fsx.capacity_gib % 2400 == 0)
    error_message = "fsx.capacity_gib: write 1200, 2400, or a multiple of 2400."
  }
  validation {
    condition     = contains([125, 250, 500, 1000], var.fsx.mbps_per_tib)
    error_message = "fsx.mbps_per_tib: write 125, 250, 500 or 1000."
  }
}

variable "image_registry" {
  description = "Registry with the images dtj-operator and dtj-trainer, which `make release-images` pushes."
  type        = string
}

variable "job_namespace" {
  description = "Namespace of the jobs, with the claim `shared`."
  type        = string
  default     = "default"
}

variable "chart" {
  description = "Chart of the operator. Default: charts/dtj-operator of this tree."
  type        = string
  default     = null
}

variable "chart_values" {
  description = "More values of the chart, as YAML. They take precedence."
  type        = string
  default     = ""
  validation {
    condition     = var.chart_values == "" ? true : can(keys(yamldecode(var.chart_values)))
    error_message = "chart_values: write YAML with the chart's fields, such as \"kueue: {enabled: true}\"."
  }
}

variable "tags" {
  description = "Tags of all AWS resources."
  type        = map(string)
  default     = {}
}
