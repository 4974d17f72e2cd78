package haengine.kubernetes;

import io.fabric8.kubernetes.api.model.ContainerState;
import io.fabric8.kubernetes.api.model.ContainerStatus;
import io.fabric8.kubernetes.api.model.Pod;
import io.fabric8.kubernetes.api.model.PodCondition;
import io.fabric8.kubernetes.client.KubernetesClient;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.deploy.k8s.Config;
import org.apache.spark.deploy.k8s.Constants;
import org.apache.spark.deploy.k8s.KubernetesUtils;
import org.apache.spark.deploy.k8s.SparkKubernetesClientFactory;
import org.apache.spark.deploy.k8s.SparkKubernetesClientFactory.ClientType$;
import scala.Option;

/** The pods that Spark makes for the executors of an application. */
public final class ExecutorPods implements AutoCloseable {

  private final KubernetesClient client;
  private final String namespace;

  /** Connects to Kubernetes as the driver with the settings {@code conf} does. */
  public ExecutorPods(SparkConf conf) {
    namespace = conf.get(Config.KUBERNETES_NAMESPACE());
    client =
        SparkKubernetesClientFactory.createKubernetesClient(
            KubernetesUtils.parseMasterUrl(conf.get("spark.master")),
            Option.apply(namespace),
            Config.KUBERNETES_AUTH_CLIENT_MODE_PREFIX(),
            ClientType$.MODULE$.Driver(),
            conf,
            Option.empty());
  }

  /** Deletes the pods of {@code application}, and the ConfigMap that they mount. */
  public void delete(String application) {
    client.pods().inNamespace(namespace).withLabels(labels(application)).delete();
    client.configMaps().inNamespace(namespace).withLabels(labels(application)).delete();
  }

  /** Returns a line for each pod whose executor is not known to {@code driver}, with the reasons. */
  public List<String> missing(SparkContext driver) {
    return client
        .pods()
        .inNamespace(namespace)
        .withLabels(labels(driver.applicationId()))
        .list()
        .getItems()
        .stream()
        .filter(pod -> !driver.getExecutorIds().contains(executor(pod)))
        .map(ExecutorPods::line)
        .collect(Collectors.toList());
  }

  private static Map<String, String> labels(String application) {
    return Map.of(
        Constants.SPARK_APP_ID_LABEL(),
        application,
        Constants.SPARK_ROLE_LABEL(),
        Constants.SPARK_POD_EXECUTOR_ROLE());
  }

  private static String executor(Pod pod) {
    return pod.getMetadata().getLabels().get(Constants.SPARK_EXECUTOR_ID_LABEL());
  }

  private static String line(Pod pod) {
    Stream<String> scheduling =
        pod.getStatus().getConditions().stream()
            .filter(one -> "PodScheduled".equals(one.getType()) && "False".equals(one.getStatus()))
            .map(PodCondition::getMessage);
    Stream<String> containers =
        pod.getStatus().getContainerStatuses().stream()
            .map(ContainerStatus::getState)
            .map(ExecutorPods::reason);
    String reasons =
        Stream.concat(scheduling, containers)
            .filter(Objects::nonNull)
            .collect(Collectors.joining("; "));
    String phase = pod.getMetadata().getName() + " is " + pod.getStatus().getPhase();
    if ("Running".equals(pod.getStatus().getPhase())) {
      phase += " and has not reached this node";
    }
    return reasons.isEmpty() ? phase : phase + ": " + reasons;
  }

  private static String reason(ContainerState state) {
    if (state.getWaiting() != null) {
      String message = state.getWaiting().getMessage();
      return state.getWaiting().getReason() + (message == null ? "" : ": " + message);
    }
    if (state.getTerminated() != null) {
      return "the container ended with exit code " + state.getTerminated().getExitCode();
    }
    return null;
  }

  @Override
  public void close() {
    client.close();
  }
}
