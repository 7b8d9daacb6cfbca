import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** Signs requests if the system properties interop.accessKey and interop.secretKey are set. */
final class Account {
    private Account() {
    }

    static RPCHook hook() {
        String accessKey = System.getProperty("interop.accessKey");
        if (accessKey == null) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(accessKey, System.getProperty("interop.secretKey")));
    }
}
