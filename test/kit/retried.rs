//! Calls as the sidecars make them: again and again, until the answer is final.

use std::time::{Duration, Instant};

use nfs_csi::proto::controller_client::ControllerClient;
use nfs_csi::proto::{CreateSnapshotRequest, CreateVolumeRequest};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::requests::{delete, delete_snapshot, expand};

/// How long a sidecar waits for one answer.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a call is repeated.
pub const DEADLINE: Duration = Duration::from_mins(3);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A connection to a driver; it outlives a restart.
pub type Controller = ControllerClient<Channel>;

/// What a sidecar asks for.
#[derive(Clone, Debug)]
pub enum Call {
    Create(CreateVolumeRequest),
    Delete(String),
    Expand(String, i64),
    Snapshot(CreateSnapshotRequest),
    DeleteSnapshot(String),
}

/// Whether a sidecar takes an answer for the last one. UNKNOWN is no driver's: its connection broke.
pub fn is_final(status: &Status) -> bool {
    use Code::{Aborted, Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable, Unknown};
    !matches!(status.code(), Aborted | Cancelled | DeadlineExceeded | ResourceExhausted | Unavailable | Unknown)
}

impl Call {
    /// Asks once. Gives the id of what there is then, or its size; nothing of what was deleted.
    pub async fn once(&self, controller: &Controller, timeout: Duration) -> Result<String, Status> {
        // A driver that is stopped answers nothing at all.
        let answer = tokio::time::timeout(timeout * 2, self.answer(controller.clone(), timeout)).await;
        answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer")))
    }

    /// Asks while the answer is not final, for three minutes; gives the last answer.
    pub async fn retried(&self, controller: &Controller) -> Result<String, Status> {
        let end = Instant::now() + DEADLINE;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.once(controller, TIMEOUT).await {
                Err(status) if !is_final(&status) && Instant::now() < end => tokio::time::sleep(pause).await,
                answer => return answer,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The same, beside what the test does.
    pub fn spawn(self, controller: &Controller) -> JoinHandle<Result<String, Status>> {
        let controller = controller.clone();
        tokio::spawn(async move { self.retried(&controller).await })
    }

    async fn answer(&self, mut controller: Controller, timeout: Duration) -> Result<String, Status> {
        match self {
            Self::Create(request) => {
                let answer = controller.create_volume(with_timeout(request.clone(), timeout)).await?;
                Ok(answer.into_inner().volume.expect("a volume").volume_id)
            }
            Self::Delete(id) => {
                controller.delete_volume(with_timeout(delete(id), timeout)).await.map(|_| String::new())
            }
            Self::Expand(id, bytes) => {
                let answer = controller.controller_expand_volume(with_timeout(expand(id, *bytes, 0), timeout)).await?;
                Ok(answer.into_inner().capacity_bytes.to_string())
            }
            Self::Snapshot(request) => {
                let answer = controller.create_snapshot(with_timeout(request.clone(), timeout)).await?;
                Ok(answer.into_inner().snapshot.expect("a snapshot").snapshot_id)
            }
            Self::DeleteSnapshot(id) => {
                controller.delete_snapshot(with_timeout(delete_snapshot(id), timeout)).await.map(|_| String::new())
            }
        }
    }
}

/// A request whose answer is waited for so long.
fn with_timeout<T>(request: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(request);
    request.set_timeout(timeout);
    request
}
