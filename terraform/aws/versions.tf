terraform {
  required_version = ">= 1.9"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
    # 3.0 made the block `kubernetes` of the provider an attribute.
    helm = {
      source  = "hashicorp/helm"
      version = ">= 1.3.2, < 3.0.0"
    }
  }
}

provider "aws" {
  region = var.region
  default_tags {
    tags = merge({ "training.dtj.dev/cluster" = var.name }, var.tags)
  }
}

# The token is fetched when it is used, because one that is kept would expire while the nodes are created.
provider "helm" {
  kubernetes {
    host                   = aws_eks_cluster.this.endpoint
    cluster_ca_certificate = base64decode(aws_eks_cluster.this.certificate_authority[0].data)
    exec {
      api_version = "client.authentication.k8s.io/v1beta1"
      command     = "aws"
      args        = ["eks", "get-token", "--region", var.region, "--cluster-name", var.name]
    }
  }
}

data "aws_partition" "current" {}
