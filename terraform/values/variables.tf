variable "image_registry" {
  description = "Registry with the images dtj-operator and dtj-trainer, such as registry.example/you."
  type        = string
  validation {
    condition     = can(regex("^[a-z0-9]+([.:/_-][a-z0-9]+|--+[a-z0-9]+)*$", var.image_registry))
    error_message = "image_registry: write the registry that has your images, without https:// and a slash at the end."
  }
}

variable "job_namespace" {
  description = "Namespace of the jobs. It is created unless it is `default`."
  type        = string
  default     = "default"
  validation {
    condition     = can(regex("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", var.job_namespace))
    error_message = "job_namespace: write at most 63 lower-case letters, digits and '-', such as research."
  }
  validation {
    condition     = var.job_namespace != "dtj-system" && !startswith(var.job_namespace, "kube-")
    error_message = "job_namespace: ${var.job_namespace} is not for jobs: write default, or a new name such as research."
  }
}

variable "objects" {
  description = "Kubernetes objects that the claim needs, such as a StorageClass or a PersistentVolume."
  type        = any
  default     = []
}

variable "storage_class" {
  description = "StorageClass of the claim. Empty: the claim binds volume_name."
  type        = string
}

variable "volume_name" {
  description = "PersistentVolume of the claim. Empty: the StorageClass creates one."
  type        = string
  default     = ""
}

variable "claim_size" {
  description = "Size of the claim, as a Kubernetes quantity."
  type        = string
  validation {
    condition     = can(regex("^[1-9][0-9]*(Mi|Gi|Ti)$", var.claim_size))
    error_message = "claim_size: write a Kubernetes quantity, such as 1200Gi."
  }
}

variable "nodes" {
  description = "GPU nodes that the first job uses."
  type        = number
}

variable "limits" {
  description = "Limits of the first job's pods, such as nvidia.com/gpu = 8."
  type        = map(string)
}

variable "tolerations" {
  description = "Tolerations of the first job's pods."
  type        = list(map(string))
  default     = []
}

variable "node_selector" {
  description = "Labels of the nodes for the first job's pods."
  type        = map(string)
  default     = {}
}

variable "env" {
  description = "Environment variables of the first job."
  type        = map(string)
  default     = {}
}
