"""The types of responses, and some types of requests.

All types are read-only. Absent fields are ``None``, or empty for lists. ``raw`` contains the original document,
including fields that this version does not know. States and kinds are plain strings, since newer servers may have more
of them.
"""

from .events import TERMINAL_EVENTS, Event, EventPage
from .fleet import Pool, ServerInfo, Worker
from .page import Page
from .permissions import Approval, Decision, PermissionRule, Permissions
from .runs import (
    FINISHED_STATES,
    CancelledSession,
    CancelReceipts,
    Estimate,
    Explanation,
    Failure,
    IfBusy,
    Image,
    MessageInput,
    Place,
    Receipt,
    Run,
    RunState,
    Submitted,
    ToolCall,
    ToolOutcome,
    ToolsInput,
    Wait,
)
from .sessions import Execution, Message, Session, Workspace
from .spending import Amount, Budget, BudgetSet, Limit, Total, Usage
from .steps import ModelCall, Step
from .webhooks import DeadLetter, DeliveryFailure, Webhook, WebhookTest

__all__ = [
    "FINISHED_STATES",
    "TERMINAL_EVENTS",
    "Amount",
    "Approval",
    "Budget",
    "BudgetSet",
    "CancelReceipts",
    "CancelledSession",
    "DeadLetter",
    "Decision",
    "DeliveryFailure",
    "Estimate",
    "Event",
    "EventPage",
    "Execution",
    "Explanation",
    "Failure",
    "IfBusy",
    "Image",
    "Limit",
    "Message",
    "MessageInput",
    "ModelCall",
    "Page",
    "PermissionRule",
    "Permissions",
    "Place",
    "Pool",
    "Receipt",
    "Run",
    "RunState",
    "ServerInfo",
    "Session",
    "Step",
    "Submitted",
    "ToolCall",
    "ToolOutcome",
    "ToolsInput",
    "Total",
    "Usage",
    "Wait",
    "Webhook",
    "WebhookTest",
    "Worker",
    "Workspace",
]
