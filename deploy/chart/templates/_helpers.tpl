{{- /* The name of what is in no namespace: as in deploy/node-agent, and another one for each further namespace. */ -}}
{{- define "plimsoll.clusterName" -}}
plimsoll-node-agent{{ if ne .Release.Namespace "velero" }}-{{ .Release.Namespace }}{{ end }}
{{- end }}

{{- define "plimsoll.priorityClass" -}}
{{ .Values.priorityClass.name | default (.Values.priorityClass.create | ternary (include "plimsoll.clusterName" .) "") }}
{{- end }}

{{- define "plimsoll.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "plimsoll.podLabels" -}}
name: node-agent
role: node-agent
app.kubernetes.io/name: plimsoll-node-agent
app.kubernetes.io/part-of: plimsoll
{{- end }}

{{- define "plimsoll.labels" -}}
app.kubernetes.io/name: plimsoll-node-agent
app.kubernetes.io/part-of: plimsoll
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "plimsoll.restoreLabels" -}}
app.kubernetes.io/name: plimsoll-restore-controller
app.kubernetes.io/part-of: plimsoll
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "plimsoll.recordsLabels" -}}
app.kubernetes.io/name: plimsoll-records
app.kubernetes.io/part-of: plimsoll
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "plimsoll.repositoryTasksLabels" -}}
app.kubernetes.io/name: plimsoll-repository-tasks
app.kubernetes.io/part-of: plimsoll
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
