{{- define "largebatch.name" -}}
{{ printf "%s-largebatch" .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end -}}

{{- define "largebatch.labels" -}}
app.kubernetes.io/name: largebatch
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "largebatch.selector" -}}
app.kubernetes.io/name: largebatch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "largebatch.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
imagePullSecrets: {{ toJson .Values.image.pullSecrets }}
securityContext: {runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
{{- end -}}

{{- define "largebatch.locked" -}}
securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
{{- end -}}

{{- define "largebatch.storage" -}}
- name: HPO_STORAGE
  valueFrom: {secretKeyRef: {name: {{ required "storage.secret must name the secret with the database's URL" .Values.storage.secret | quote }}, key: {{ .Values.storage.key | quote }}}}
{{- end -}}
