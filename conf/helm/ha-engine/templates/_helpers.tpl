{{- define "ha-engine.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels of a component: (list $ "nodes"). */}}
{{- define "ha-engine.selector" -}}
app.kubernetes.io/name: ha-engine
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "ha-engine.labels" -}}
{{ include "ha-engine.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end }}

{{/* The beginning of each pod. A Service's variables, such as HA_ENGINE_PORT, would be read as settings. */}}
{{- define "ha-engine.pod" -}}
automountServiceAccountToken: false
{{ include "ha-engine.restricted" . }}
{{- end }}

{{- define "ha-engine.restricted" -}}
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "ha-engine.container" -}}
image: {{ include "ha-engine.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{ include "ha-engine.security" . | nindent 2 }}
{{- end }}

{{- define "ha-engine.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "ha-engine.require" -}}
{{- if not .Values.application }}
{{- fail "application is empty; give its files with --set-file application.application\\.yaml=FILE" }}
{{- end }}
{{- $database := required "database.secretName is missing; create a Secret with the key 'url' and name it" .Values.database.secretName }}
{{- if not (or .Values.tls.secretName .Values.tls.insecure) }}
{{- fail "tls.secretName is missing; name a Secret with a certificate, or set tls.insecure=true if you trust the network" }}
{{- end }}
{{- if .Values.spark.enabled }}
{{- if not (has .Values.spark.manager (list "standalone" "kubernetes")) }}
{{- fail (print "spark.manager is " .Values.spark.manager "; set it to standalone or kubernetes") }}
{{- end }}
{{- $secret := required "spark.secretName is missing; create a Secret with the key 'secret' and name it" .Values.spark.secretName }}
{{- if not (or .Values.spark.checkpointClaim .Values.spark.checkpoint) }}
{{- fail "spark.checkpointClaim is missing; name a claim with the access mode ReadWriteMany, or set spark.checkpoint to s3a://BUCKET/FOLDER" }}
{{- end }}
{{- if and .Values.spark.checkpointClaim .Values.spark.checkpoint }}
{{- fail "spark.checkpointClaim and spark.checkpoint are set; the state of the queries is in one of them, so set one" }}
{{- end }}
{{- if and (include "ha-engine.standalone" .) (gt (int .Values.spark.masters) 1) (not .Values.spark.zookeeper) }}
{{- fail "spark.zookeeper is missing; several masters choose their leader in it, so name it or set spark.masters=1" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether masters and workers of Spark run, or whether executors are pods: not empty if so. */}}
{{- define "ha-engine.standalone" -}}
{{- if and .Values.spark.enabled (eq .Values.spark.manager "standalone") }}true{{ end }}
{{- end }}
{{- define "ha-engine.executor-pods" -}}
{{- if and .Values.spark.enabled (eq .Values.spark.manager "kubernetes") }}true{{ end }}
{{- end }}

{{/* The files of a certificate in a config file. */}}
{{- define "ha-engine.pair" -}}
{certificate: /etc/ha-engine/tls/tls.crt, key: /etc/ha-engine/tls/tls.key}
{{- end }}

{{- define "ha-engine.authority" -}}
{certificate: /etc/ha-engine/tls/tls.crt, key: /etc/ha-engine/tls/tls.key, ca: /etc/ha-engine/tls/ca.crt}
{{- end }}

{{- define "ha-engine.scheme" -}}
{{ if .Values.tls.secretName }}https{{ else }}http{{ end }}
{{- end }}

{{/* The names of the Service NAME, as clients write them: (list $ "NAME"). */}}
{{- define "ha-engine.service-names" -}}
{{- $namespace := (index . 0).Release.Namespace }}{{ $name := index . 1 -}}
{{ concat (list $name (print $name "." $namespace) (print $name "." $namespace ".svc")) (index . 0).Values.hostNames | toJson }}
{{- end }}

{{- define "ha-engine.masters" -}}
{{- $hosts := list }}
{{- range $number := until (int .Values.spark.masters) }}
{{- $hosts = append $hosts (printf "%s-master-%d.%s-masters:7077" $.Release.Name $number $.Release.Name) }}
{{- end -}}
spark://{{ join "," $hosts }}
{{- end }}

{{- define "ha-engine.spark-conf" -}}
spark.authenticate true
spark.network.crypto.enabled true
spark.worker.cleanup.enabled true
{{- if .Values.spark.zookeeper }}
spark.deploy.recoveryMode ZOOKEEPER
spark.deploy.zookeeper.url {{ .Values.spark.zookeeper }}
spark.deploy.zookeeper.dir /{{ .Release.Namespace }}/{{ .Release.Name }}
{{- else }}
spark.deploy.recoveryMode FILESYSTEM
spark.deploy.recoveryDirectory /var/lib/ha-engine/master
{{- end }}
spark.metrics.conf.*.sink.prometheusServlet.class org.apache.spark.metrics.sink.PrometheusServlet
spark.metrics.conf.*.sink.prometheusServlet.path /metrics/prometheus
spark.metrics.conf.applications.sink.prometheusServlet.path /metrics/applications/prometheus
{{- end }}

{{/* Masters and workers read their config at their start only. */}}
{{- define "ha-engine.spark-pod" -}}
labels: {{ include "ha-engine.labels" . | nindent 2 }}
annotations:
  checksum/config: {{ include "ha-engine.spark-conf" (index . 0) | sha256sum }}
{{- end }}

{{/* The config of a node: (list $ 0). */}}
{{- define "ha-engine.node-config" -}}
{{- $ := index . 0 }}{{ $number := int (index . 1) }}
{{- $release := $.Release.Name }}
{{- $node := printf "%s-%d" $release $number }}
{{- $other := printf "%s-%d" $release (sub 1 $number) }}
{{- $service := printf "%s-nodes.%s.svc" $release $.Release.Namespace }}
{{- $host := printf "%s.%s" $node $service }}
group: {{ $release }}
application: application.yaml
node:
  id: {{ $node }}
  data_dir: /var/lib/ha-engine/node
event_sync:
  listen: 0.0.0.0:9893
  advertise: {{ $host }}:9893
  peers: { {{ $other }}: "{{ $other }}.{{ $service }}:9893" }
  {{- if $.Values.tls.secretName }}
  tls: {{ include "ha-engine.authority" $ }}
  {{- else }}
  insecure: true
  {{- end }}
http:
  listen: 0.0.0.0:8080
  advertise: {{ include "ha-engine.scheme" $ }}://{{ $host }}:8080
  host_names: {{ include "ha-engine.service-names" (list $ $release) }}
  {{- if $.Values.tls.secretName }}
  tls: {{ include "ha-engine.pair" $ }}
  {{- else }}
  insecure: true
  {{- end }}
ingest:
  listen: 0.0.0.0:9894
  advertise: {{ $host }}:9894
  {{- if $.Values.tls.secretName }}
  tls: {{ include "ha-engine.pair" $ }}
  {{- else }}
  insecure: true
  {{- end }}
{{- if $.Values.spark.enabled }}
execution:
  {{- if include "ha-engine.standalone" $ }}
  master: {{ include "ha-engine.masters" $ }}
  {{- else }}
  master: k8s://https://kubernetes.default.svc
  kubernetes: {image: {{ include "ha-engine.image" $ | quote }}, pod: {{ $node }}}
  {{- end }}
  executors: {{ toJson $.Values.spark.executors }}
  checkpoint: {{ $.Values.spark.checkpoint | default "/var/lib/ha-engine-checkpoint" }}
  listen: 0.0.0.0:9895
  advertise: {{ $host }}:9895
  {{- if $.Values.tls.secretName }}
  tls: {{ include "ha-engine.authority" $ }}
  {{- else }}
  insecure: true
  {{- end }}
{{- end }}
{{- if include "ha-engine.executor-pods" $ }}
query:
  spark:
    spark.kubernetes.container.image.pullPolicy: {{ $.Values.image.pullPolicy }}
    spark.kubernetes.executor.podTemplateFile: /etc/ha-engine/executor.yaml
{{- end }}
log: {format: json}
{{- end }}

{{/* The pod of an executor. Spark adds the image, the command and the resources. */}}
{{- define "ha-engine.executor" -}}
apiVersion: v1
kind: Pod
metadata:
  labels: {{ include "ha-engine.labels" (list . "executor") | nindent 4 }}
  {{- with .Values.spark.executorAnnotations }}
  annotations: {{ toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "ha-engine.pod" . | nindent 2 }}
  # The first process of the pod reaps the Python of an executor.
  shareProcessNamespace: true
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{ include "ha-engine.selector" (list . "executor") | nindent 10 }}
  {{- with .Values.spark.executorNodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.spark.executorTolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: executor
      securityContext: {{ include "ha-engine.security" . | nindent 8 }}
      {{- with .Values.spark.executorEnv }}
      env: {{ toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: etc, mountPath: /etc/ha-engine}
        {{- if .Values.spark.checkpointClaim }}
        - {name: checkpoint, mountPath: /var/lib/ha-engine-checkpoint}
        {{- end }}
  volumes:
    - {name: tmp, emptyDir: {}}
    # A function of a query may import modules of the application.
    - {{- include "ha-engine.etc" (list . list) | nindent 6 }}
    {{- with .Values.spark.checkpointClaim }}
    - {name: checkpoint, persistentVolumeClaim: {claimName: {{ . }}}}
    {{- end }}
{{- end }}

{{- define "ha-engine.receiver-config" -}}
{{- $name := printf "%s-receivers" .Release.Name }}
application: application.yaml
http:
  listen: 0.0.0.0:8080
  advertise: {{ include "ha-engine.scheme" . }}://{{ $name }}.{{ .Release.Namespace }}.svc:8080
  host_names: {{ include "ha-engine.service-names" (list . $name) }}
  {{- if .Values.tls.secretName }}
  tls: {{ include "ha-engine.pair" . }}
  {{- else }}
  insecure: true
  {{- end }}
ingest:
  listen: 0.0.0.0:9894
  advertise: {{ $name }}.{{ .Release.Namespace }}.svc:9894
  {{- if .Values.tls.secretName }}
  tls: {{ include "ha-engine.pair" . }}
  {{- else }}
  insecure: true
  {{- end }}
log: {format: json}
{{- end }}

{{/* The directory of the config, the application and the certificate: (list $ (list "FILE" ...)). */}}
{{- define "ha-engine.etc" -}}
{{- $ := index . 0 -}}
name: etc
projected:
  defaultMode: 0440
  sources:
    - configMap:
        name: {{ $.Release.Name }}-application
    {{- with index . 1 }}
    - configMap:
        name: {{ $.Release.Name }}-config
        items:
          {{- range . }}
          - {key: {{ . }}, path: {{ . }}}
          {{- end }}
    {{- if $.Values.tls.secretName }}
    - secret:
        name: {{ $.Values.tls.secretName }}
        items:
          {{- range list "tls.crt" "tls.key" "ca.crt" }}
          - {key: {{ . }}, path: tls/{{ . }}}
          {{- end }}
    {{- end }}
    {{- end }}
{{- end }}
