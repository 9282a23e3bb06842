{{- define "dtj-operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name -}}
{{- end -}}

{{/*
Release `dtj` makes `dtj-operator`, release `blue` makes `blue-dtj-operator`: no two releases make the same name. Helm's own
scaffold leaves the chart's name out wherever the release has it in it, so that `a` and `a-dtj-operator` collide.
Cut at 55 characters, so that the name of the metrics Service fits into 63; a release has 53 at most, so all of it stays.
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

{{/* Of what has no namespace: two releases of one name in two namespaces are two. No name of either has a colon. */}}
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

{{/* User and group are the cluster's to choose where openshift is set: restricted-v2 refuses all others. */}}
{{- define "dtj-operator.podSecurityContext" -}}
{{- if .Values.openshift -}}
{{- omit .Values.podSecurityContext "runAsUser" "runAsGroup" "fsGroup" | toYaml -}}
{{- else -}}
{{- toYaml .Values.podSecurityContext -}}
{{- end -}}
{{- end -}}

{{/* Kubernetes would leave the pod on a node that does not answer for 300 s. What the values say of a taint stands. */}}
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

{{/* What the operator does, and nothing more: operator/src/dtj_operator/rbac.py says why; a test holds the two together. */}}
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
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}
