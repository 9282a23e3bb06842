{{- define "dtj-operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name -}}
{{- end -}}

{{/*
Rejects the values of an older chart, which `helm upgrade --reuse-values` takes in place of this chart's defaults.
*/}}
{{- define "dtj-operator.checkValues" -}}
{{- range $path := list "image" "leaderElection" "kueue" "podGroups" "sickNodes" "podDisruptionBudget" "crds" "masterKey" "rbac" "serviceAccount" "metrics.authentication" "metrics.service" "metrics.serviceMonitor" "metrics.podMonitor" "metrics.prometheusRule" "metrics.dashboard" "networkPolicy" "jobNetworkPolicy" "test" "log" "agent" "tracking.mlflow.persistence" "tracking.tensorboard" -}}
{{- $found := merge (dict) $.Values -}}
{{- range $name := splitList "." $path -}}
{{- $found = get $found $name -}}
{{- if not (kindIs "map" $found) -}}
{{- fail (printf "the values have no %s, so they are those of an older chart: write --reset-then-reuse-values (Helm 3.14 or later) instead of --reuse-values" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Release `dtj` creates `dtj-operator`, release `blue` creates `blue-dtj-operator`: no two releases share a name.
Helm's own scaffold omits the chart's name wherever the release contains it, so `a` and `a-dtj-operator` would collide.
The name is cut at 55 characters, so that the name of the metrics Service fits into 63. A release has 53 at most, so
the release's name is never cut.
*/}}
{{- define "dtj-operator.fullname" -}}
{{- $name := include "dtj-operator.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if eq $name (printf "%s-operator" .Release.Name) -}}
{{- $name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 55 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
The name of objects without a namespace. It holds the namespace, so that two releases of one name in two namespaces
differ. A namespace or a release can't contain a colon.
*/}}
{{- define "dtj-operator.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "dtj-operator.fullname" .) -}}
{{- end -}}

{{- define "dtj-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "dtj-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dtj-operator.labels" -}}
{{ include "dtj-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: dtj
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- /* A label of the chart itself can't be replaced: selectors rely on it. */}}
{{- with omit .Values.commonLabels "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/part-of" "app.kubernetes.io/managed-by" "helm.sh/chart" }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Labels and annotations of an object: those of the chart, those that the values give all objects, and its own (`labels`
and `annotations` of the argument). In labels the chart's win, in annotations the object's.
*/}}
{{- define "dtj-operator.metadata" -}}
labels:
  {{- merge (include "dtj-operator.labels" .root | fromYaml) (.labels | default dict) | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "dtj-operator.image" -}}
{{- with .Values.image -}}
{{- if .registry }}{{ .registry }}/{{ end -}}
{{- .repository -}}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "dtj-operator.agentResources" -}}
{{- $pairs := list -}}
{{- range $name, $quantity := .Values.agent.resources -}}
{{- $pairs = append $pairs (printf "%s=%v" $name $quantity) -}}
{{- end -}}
{{- $pairs | join "," | default "none" -}}
{{- end -}}

{{/* Who may reach the agents' port of every job: the operator, and the peers of the values. */}}
{{- define "dtj-operator.jobPeers" -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- $pods := dict "matchLabels" (include "dtj-operator.selectorLabels" . | fromYaml) -}}
{{- $operator := dict "namespaceSelector" $namespace "podSelector" $pods -}}
{{- concat (list $operator) .Values.jobNetworkPolicy.ingressFrom | toJson -}}
{{- end -}}

{{- define "dtj-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "dtj-operator.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "dtj-operator.masterKeySecret" -}}
{{- .Values.masterKey.existingSecret | default (printf "%s-master-key" (include "dtj-operator.fullname" .)) -}}
{{- end -}}

{{- define "dtj-operator.metricsSecret" -}}
{{- .Values.metrics.authentication.existingSecret | default (printf "%s-metrics-tls" (include "dtj-operator.fullname" .)) -}}
{{- end -}}

{{- define "dtj-operator.metricsHost" -}}
{{- printf "%s-metrics.%s.svc" (include "dtj-operator.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* Binds a Role for leases to the operator's account. */}}
{{- define "dtj-operator.leaseBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .role }}
  namespace: {{ .namespace }}
  {{- include "dtj-operator.metadata" (dict "root" .root) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    name: {{ include "dtj-operator.serviceAccountName" .root }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{/*
Spreads the replicas over nodes and zones where there are several. A rollout counts its own pods only.
A constraint in the values replaces these.
*/}}
{{- define "dtj-operator.topologySpreadConstraints" -}}
{{- if .Values.topologySpreadConstraints -}}
{{- toYaml .Values.topologySpreadConstraints -}}
{{- else -}}
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "dtj-operator.selectorLabels" $ | nindent 6 }}
  matchLabelKeys: [pod-template-hash]
{{- end -}}
{{- end -}}
{{- end -}}

{{/* With `openshift`, the cluster chooses user and group, because restricted-v2 rejects all others. */}}
{{- define "dtj-operator.podSecurityContext" -}}
{{- if .Values.openshift -}}
{{- omit .Values.podSecurityContext "runAsUser" "runAsGroup" "fsGroup" | toYaml -}}
{{- else -}}
{{- toYaml .Values.podSecurityContext -}}
{{- end -}}
{{- end -}}

{{/*
By default Kubernetes leaves the pod on an unreachable node for 300 s; these tolerations make it 30 s.
A toleration in the values takes precedence.
*/}}
{{- define "dtj-operator.tolerations" -}}
{{- $given := .Values.tolerations -}}
{{- $keys := list -}}
{{- range $given }}{{- $keys = append $keys (.key | default "") -}}{{- end -}}
{{- range list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- if not (or (has . $keys) (has "" $keys)) -}}
{{- $given = append $given (dict "key" . "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 30) -}}
{{- end -}}
{{- end -}}
{{- toYaml $given -}}
{{- end -}}

{{/* Only the calls that the operator makes. operator/src/dtj_operator/rbac.py has the reasons; a test compares the two. */}}
{{- define "dtj-operator.rules" -}}
- apiGroups: [training.dtj.dev]
  resources: [distributedtrainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [training.dtj.dev]
  resources: [distributedtrainingjobs/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch]
{{- if .Values.jobNetworkPolicy.enabled }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, patch]
{{- end }}
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, create]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- if .Values.podGroups.enabled }}
- apiGroups: [scheduling.x-k8s.io, scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [create, patch]
{{- end }}
{{- end -}}

{{/*
Labels by which a tracking server (`component` of the argument) is selected. The name is not the operator's, so that
the operator's Services, policies and monitors do not select the server.
*/}}
{{- define "dtj-operator.trackingSelector" -}}
app.kubernetes.io/name: {{ printf "%s-%s" (include "dtj-operator.name" .root | trunc 50 | trimSuffix "-") .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end -}}

{{/* The name of a tracking server's objects. A Service's name has 63 characters at most. */}}
{{- define "dtj-operator.trackingName" -}}
{{- printf "%s-%s" (include "dtj-operator.fullname" .root | trunc 51 | trimSuffix "-") .component -}}
{{- end -}}

{{/* Labels and annotations of a tracking server's object. `annotations` of the argument win. */}}
{{- define "dtj-operator.trackingMetadata" -}}
{{- $own := include "dtj-operator.trackingSelector" . | fromYaml -}}
labels:
  {{- merge $own (include "dtj-operator.labels" .root | fromYaml) | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The names under which jobs and `kubectl port-forward` reach MLflow, which rejects requests to any other host. */}}
{{- define "dtj-operator.mlflowHosts" -}}
{{- $service := include "dtj-operator.trackingName" (dict "root" . "component" "mlflow") -}}
{{- $inNamespace := printf "%s.%s" $service .Release.Namespace -}}
{{- $hosts := list "localhost" "localhost:*" "127.0.0.1" "127.0.0.1:*" -}}
{{- range list $service $inNamespace (printf "%s.svc" $inNamespace) (printf "%s.svc.cluster.local" $inNamespace) -}}
{{- $hosts = concat $hosts (list . (printf "%s:5000" .)) -}}
{{- end -}}
{{- concat $hosts .Values.tracking.mlflow.allowedHosts | join "," -}}
{{- end -}}

{{/*
Service, NetworkPolicy and the Deployment's fields that all tracking servers share. The argument has `root`,
`component`, `namespace`, `port` and `values` (image, ingressFrom, resources).
*/}}
{{- define "dtj-operator.trackingService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "dtj-operator.trackingName" . }}
  namespace: {{ .namespace }}
  {{- include "dtj-operator.trackingMetadata" . | nindent 2 }}
spec:
  selector: {{- include "dtj-operator.trackingSelector" . | nindent 4 }}
  ports:
    - {name: http, port: {{ .port }}, targetPort: http}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "dtj-operator.trackingName" . }}
  namespace: {{ .namespace }}
  {{- include "dtj-operator.trackingMetadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels: {{- include "dtj-operator.trackingSelector" . | nindent 6 }}
  policyTypes: [Ingress]
  {{- with .values.ingressFrom }}
  ingress:
    - ports:
        - {port: {{ $.port }}, protocol: TCP}
      from: {{- toYaml . | nindent 8 }}
  {{- else }}
  ingress: []
  {{- end }}
{{- end -}}

{{- define "dtj-operator.trackingPod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- include "dtj-operator.podSecurityContext" .root | nindent 2 }}
{{- end -}}

{{- define "dtj-operator.trackingContainer" -}}
ports:
  - {name: http, containerPort: {{ .port }}}
startupProbe:
  httpGet: {path: {{ .path }}, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 60
readinessProbe:
  httpGet: {path: {{ .path }}, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: {{ .path }}, port: http}
  periodSeconds: 30
  timeoutSeconds: 10
  failureThreshold: 6
{{- with .values.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml .root.Values.securityContext | nindent 2 }}
{{- end -}}
