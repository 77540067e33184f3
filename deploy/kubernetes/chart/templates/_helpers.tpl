{{- /* Programs of the registry that use the broker, the object store, and the internet: a JSON object of lists. */}}
{{- define "ratchet.uses" }}
{{- $registry := .Files.Get "topics.json" | fromJson }}
{{- $broker := list }}{{ $objects := list }}{{ $internet := list }}
{{- range $registry.topics }}{{ $broker = concat $broker .producers (.consumers | default list) }}{{ end }}
{{- range $registry.buckets }}{{ $broker = concat $broker (.writers | default list) (.readers | default list) }}{{ end }}
{{- range $registry.objects }}{{ $objects = concat $objects .writers (.readers | default list) }}{{ end }}
{{- range $registry.webhooks }}{{ $internet = concat $internet .writers }}{{ end }}
{{- dict "broker" (uniq $broker) "objects" (uniq $objects) "internet" $internet | toJson }}
{{- end }}

{{- define "ratchet.name" }}{{ . | replace "_" "-" }}{{ end }}

{{- /* Peers of a policy, on one line: services by name, and others as the values give them. */}}
{{- define "ratchet.peers" }}
{{- $names := list }}
{{- range .services }}{{ $names = append $names (include "ratchet.name" .) }}{{ end }}
{{- $ours := list (dict "key" "app.kubernetes.io/name" "operator" "In" "values" (list "ratchet")) (dict "key" "app.kubernetes.io/component" "operator" "In" "values" $names) }}
{{- $peers := .others | default list }}
{{- if $names }}{{ $peers = prepend $peers (dict "podSelector" (dict "matchExpressions" $ours)) }}{{ end }}
{{- toJson $peers }}
{{- end }}

{{- define "ratchet.selector" }}{app.kubernetes.io/name: ratchet, app.kubernetes.io/component: {{ include "ratchet.name" . }}}{{ end }}

{{- /* The port of an HTTP address. */}}
{{- define "ratchet.port" }}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" (urlParse .).host) | default (hasPrefix "https" . | ternary "443" "80") }}
{{- end }}

{{- /* Addresses of all of vLLM's servers. */}}
{{- define "ratchet.engines" }}
{{- $urls := list }}
{{- range concat .stable .canary }}{{ $urls = append $urls (printf "http://%s:%v" .name .port) }}{{ end }}
{{- join "," $urls }}
{{- end }}

{{- /* Servers of a pool as what a route leads to, each with a weight. */}}
{{- define "ratchet.backends" }}
{{- $weight := .weight }}
{{- range .pool }}
        - {name: {{ .name }}, port: {{ .port }}, weight: {{ $weight }}}
{{- end }}
{{- end }}

{{- define "ratchet.pod" }}{runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}{{ end }}
{{- define "ratchet.container" }}{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}{{ end }}

{{- /* A service's part of the values, with what it leaves to the defaults. */}}
{{- define "ratchet.service" }}
{{- $service := merge (deepCopy .given) .defaults }}
{{- if hasKey .given "min" }}{{ $_ := set $service "min" .given.min }}{{ end }}
{{- $service | toJson }}
{{- end }}

{{- /* Variables that all services have. */}}
{{- define "ratchet.common" }}
{{- $all := dict "RATCHET_NATS_URL" "nats://nats:4222" "RATCHET_NATS_SEED_FILE" "/run/secrets/ratchet/broker.seed" "RATCHET_REPLICAS" .Values.nats.replicas }}
{{- with .Values.clickhouse.cluster }}{{ $_ := set $all "RATCHET_CLICKHOUSE_CLUSTER" . }}{{ end }}
{{- range $name, $service := .Values.services }}
{{- if $service.url }}{{ $_ := set $all $service.url (printf "http://%s:%v" (include "ratchet.name" $name) $service.http) }}{{ end }}
{{- end }}
{{- merge $all .Values.env | toJson }}
{{- end }}

{{- /* Variables of a service beside those: its own, and from Secrets what its part of the values and the registry name. */}}
{{- define "ratchet.env" }}
{{- $root := .root }}{{ $service := .service }}{{ $values := $root.Values }}
{{- $uses := include "ratchet.uses" $root | fromJson }}
{{- $plain := dict }}
{{- $secrets := $service.secrets | default list }}
{{- if has .program $uses.objects }}{{ $secrets = concat $secrets (list "RATCHET_S3_ACCESS_KEY" "RATCHET_S3_SECRET_KEY") }}{{ end }}
{{- if $service.warehouse }}{{ $secrets = append $secrets "RATCHET_CLICKHOUSE_URL" }}{{ end }}
{{- if $service.engine }}
{{- $url := include "ratchet.engines" $values.engine }}
{{- if and (eq .name "gateway") $values.engine.route }}{{ $url = printf "http://%s:%v" $values.engine.route.hostname $values.engine.route.port }}{{ end }}
{{- $_ := set $plain "RATCHET_ENGINE_URL" $url }}
{{- end }}
{{- if $service.watches }}
{{- $health := dict }}
{{- $self := .name }}
{{- range $name, $other := $values.services }}
{{- if and (ne $name $self) (ne (toString $other.min) "0") }}{{ $_ := set $health $name (printf "http://%s:9100" (include "ratchet.name" $name)) }}{{ end }}
{{- end }}
{{- $_ := set $plain $service.watches (toJson $health) }}
{{- end }}
          envFrom: [{configMapRef: {name: ratchet}}]
          env:
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
{{- range $variable, $value := merge (deepCopy ($service.env | default dict)) $plain }}
            - {name: {{ $variable }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- range $secrets }}
            - {name: {{ . }}, valueFrom: {secretKeyRef: {name: {{ $values.secret }}, key: {{ . }}}}}
{{- end }}
{{- range $service.optional }}
            - {name: {{ . }}, valueFrom: {secretKeyRef: {name: {{ $values.secret }}, key: {{ . }}, optional: true}}}
{{- end }}
{{- end }}

{{- /* Pods start again where these variables change. */}}
{{- define "ratchet.annotations" }}{ratchet.dev/variables: {{ include "ratchet.common" . | sha256sum | trunc 12 | quote }}}{{ end }}

{{- /* What a pod mounts: its data, room for temporary files, and the seed of its own user of the broker alone. */}}
{{- define "ratchet.mounts" }}
            - {name: data, mountPath: /data}
            - {name: tmp, mountPath: /tmp}
            - {name: seed, mountPath: /run/secrets/ratchet, readOnly: true}
{{- end }}
{{- define "ratchet.volumes" }}
        - {name: tmp, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
        - name: seed
          secret: {secretName: {{ .root.Values.brokerSecret }}, defaultMode: 0440, items: [{key: {{ .user }}.seed, path: broker.seed}]}
{{- end }}

{{- define "ratchet.spread" }}
      topologySpreadConstraints:
        - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {{ include "ratchet.selector" . }}}}
{{- end }}
