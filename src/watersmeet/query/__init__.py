"""From SQL text to a frozen `JoinQuery`, and the oracle that answers it over complete data."""
