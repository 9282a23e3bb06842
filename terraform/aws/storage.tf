# One filesystem that all pods mount (ReadWriteMany), its CSI driver, and the objects for the claim `shared`.

locals {
  efs = var.storage == "efs"
  # Jobs run as this user unless their template names another one.
  user = "65532"
  csi = local.efs ? {
    addon = "aws-efs-csi-driver", account = "efs-csi-controller-sa", policy = "service-role/AmazonEFSCSIDriverPolicy"
    } : {
    addon = "aws-fsx-csi-driver", account = "fsx-csi-controller-sa", policy = "AmazonFSxFullAccess"
  }
  # Lustre answers on 988, and calls its clients back on the others.
  ports = local.efs ? { nfs = [2049, 2049] } : { lustre = [988, 988], callbacks = [1018, 1023] }

  # An access point makes every file belong to that user, whoever the pod runs as.
  efs_objects = [for system in aws_efs_file_system.this : {
    apiVersion  = "storage.k8s.io/v1"
    kind        = "StorageClass"
    metadata    = { name = "dtj-shared" }
    provisioner = "efs.csi.aws.com"
    parameters = {
      provisioningMode = "efs-ap"
      fileSystemId     = system.id
      directoryPerms   = "770"
      uid              = local.user
      gid              = local.user
      basePath         = "/dtj"
    }
    reclaimPolicy = "Retain"
  }]

  fsx_volume = [for system in aws_fsx_lustre_file_system.this : {
    apiVersion = "v1"
    kind       = "PersistentVolume"
    metadata   = { name = "dtj-shared", annotations = { "helm.sh/resource-policy" = "keep" } }
    spec = {
      accessModes                   = ["ReadWriteMany"]
      capacity                      = { storage = "${var.fsx.capacity_gib}Gi" }
      persistentVolumeReclaimPolicy = "Retain"
      storageClassName              = ""
      mountOptions                  = ["flock"]
      csi = {
        driver           = "fsx.csi.aws.com"
        volumeHandle     = system.id
        volumeAttributes = { dnsname = system.dns_name, mountname = system.mount_name }
      }
    }
  }]

  # A new Lustre filesystem belongs to root, and its driver changes no owner. The hook runs after the claim exists.
  fsx_owner = [for system in aws_fsx_lustre_file_system.this : {
    apiVersion = "batch/v1"
    kind       = "Job"
    metadata = {
      name      = "dtj-shared-owner"
      namespace = var.job_namespace
      annotations = {
        "helm.sh/hook"               = "post-install"
        "helm.sh/hook-delete-policy" = "before-hook-creation,hook-succeeded"
      }
    }
    spec = {
      backoffLimit = 6
      template = {
        spec = {
          restartPolicy = "Never"
          containers = [{
            name            = "chown"
            image           = "{{ include \"dtj-operator.image\" . }}"
            command         = ["python3", "-c", "import os; os.chown('/shared', ${local.user}, ${local.user})"]
            securityContext = { runAsUser = 0, runAsNonRoot = false }
            volumeMounts    = [{ name = "shared", mountPath = "/shared" }]
          }]
          volumes = [{ name = "shared", persistentVolumeClaim = { claimName = "shared" } }]
        }
      }
    }
  }]
}

resource "aws_security_group" "storage" {
  name        = "${var.name}-storage"
  description = "The shared filesystem, from the nodes"
  vpc_id      = aws_vpc.this.id
  tags        = { Name = "${var.name}-storage" }
}

resource "aws_vpc_security_group_ingress_rule" "storage_from_nodes" {
  for_each                     = local.ports
  security_group_id            = aws_security_group.storage.id
  referenced_security_group_id = aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = each.value[0]
  to_port                      = each.value[1]
}

resource "aws_vpc_security_group_ingress_rule" "storage_from_itself" {
  for_each                     = local.efs ? {} : local.ports
  security_group_id            = aws_security_group.storage.id
  referenced_security_group_id = aws_security_group.storage.id
  ip_protocol                  = "tcp"
  from_port                    = each.value[0]
  to_port                      = each.value[1]
}

resource "aws_vpc_security_group_egress_rule" "storage" {
  security_group_id = aws_security_group.storage.id
  cidr_ipv4         = var.vpc_cidr
  ip_protocol       = "-1"
}

resource "aws_efs_file_system" "this" {
  count           = local.efs ? 1 : 0
  encrypted       = true
  throughput_mode = "elastic"
  tags            = { Name = var.name }
}

resource "aws_efs_mount_target" "this" {
  for_each        = local.efs ? local.zones : {}
  file_system_id  = aws_efs_file_system.this[0].id
  subnet_id       = aws_subnet.private[each.key].id
  security_groups = [aws_security_group.storage.id]
}

resource "aws_fsx_lustre_file_system" "this" {
  count                       = local.efs ? 0 : 1
  deployment_type             = "PERSISTENT_2"
  storage_capacity            = var.fsx.capacity_gib
  per_unit_storage_throughput = var.fsx.mbps_per_tib
  subnet_ids                  = [aws_subnet.private[local.gpu_zone].id]
  security_group_ids          = [aws_security_group.storage.id]
  tags                        = { Name = var.name }
}

resource "aws_iam_role" "csi" {
  name               = "${var.name}-csi"
  assume_role_policy = local.trust["pods.eks"]
}

resource "aws_iam_role_policy_attachment" "csi" {
  role       = aws_iam_role.csi.name
  policy_arn = "${local.policies}/${local.csi.policy}"
}

resource "aws_eks_addon" "csi" {
  cluster_name                = aws_eks_cluster.this.name
  addon_name                  = local.csi.addon
  resolve_conflicts_on_create = "OVERWRITE"
  resolve_conflicts_on_update = "OVERWRITE"
  pod_identity_association {
    role_arn        = aws_iam_role.csi.arn
    service_account = local.csi.account
  }
  depends_on = [aws_eks_node_group.system, aws_eks_addon.before_nodes, aws_iam_role_policy_attachment.csi]
}
